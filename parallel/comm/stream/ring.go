package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Frames for a process on this machine are put into a ring at the beginning of the shared memory. The rank that waits
// for a frame takes it from there itself, and sleeps on a futex meanwhile: no goroutine hands it over, and a frame that
// arrives while ranks compute wakes nobody. Aborts, heartbeats, and frames for which the ring has no slot go through
// the socket, which a goroutine always reads.
const (
	slots     = 64  // maximum number of frames that nobody has taken
	slotBytes = 256 // per slot: after, length, and a frame without its payload
	slotHead  = 8
	ringHead  = 2 * pieceHead // the sender's words, then the receiver's
	ringBytes = ringHead + slots*slotBytes
)

// Offsets of the words of a ring.
const (
	bell   = 0             // a futex, which changes to make sleepers check the ring
	put    = 4             // frames put in so far
	taken  = pieceHead     // frames taken out so far
	asleep = pieceHead + 4 // number of those that sleep or are about to
)

// Operations of futex(2) for memory shared between processes.
const (
	futexWait = 0
	futexWake = 1
)

// word returns a word of the ring or of a piece, which both processes change.
func (s *shared) word(at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&s.data[at])) }

// slot returns the slot of frame n.
func (s *shared) slot(n uint32) []byte {
	return s.data[ringHead+int(n%slots)*slotBytes:][:slotBytes]
}

// post puts the head of a frame into the ring; after is the number of frames that went through the socket before it. It
// returns false if there is no room.
func (s *shared) post(head []byte, after uint32) bool {
	if len(head) > slotBytes-slotHead || !s.hold() {
		return false
	}
	defer s.drop()
	n := s.word(put).Load()
	if n-s.word(taken).Load() >= slots {
		return false
	}
	slot := s.slot(n)
	binary.LittleEndian.PutUint32(slot, after)
	binary.LittleEndian.PutUint32(slot[4:], uint32(len(head)))
	copy(slot[slotHead:], head)
	s.word(put).Store(n + 1)
	s.wake()
	return true
}

// wake makes sleepers check the ring. No wake-up is lost: a sleeper counts itself before it checks, and whoever changes
// the ring does so before looking for sleepers.
func (s *shared) wake() {
	if s.word(asleep).Load() > 0 {
		s.word(bell).Add(1)
		_ = s.futex(futexWake, math.MaxInt32)
	}
}

// futex calls a futex operation on the bell.
func (s *shared) futex(operation int, value uint32) unix.Errno {
	_, _, no := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&s.data[bell])), uintptr(operation), uintptr(value),
		0, 0, 0)
	return no
}

// ready reports whether the oldest frame can be taken: it exists, and all frames sent through the socket before it have
// been read.
func (s *shared) ready(read uint32) bool {
	n := s.word(taken).Load()
	return s.word(put).Load() != n && binary.LittleEndian.Uint32(s.slot(n)) == read
}

// next takes the oldest frame, which must be ready.
func (s *shared) next() (*frame, error) {
	n := s.word(taken).Load()
	slot := string(s.slot(n)) // a copy, because the other side can still write to the slot
	there, length := s.word(put).Load()-n, binary.LittleEndian.Uint32([]byte(slot[4:]))
	if there > slots || length > slotBytes-slotHead {
		return nil, fmt.Errorf("%d frames in a ring of %d, the first of %d bytes: not this protocol", there, slots, length)
	}
	s.word(taken).Store(n + 1)
	f, err := readFrame(strings.NewReader(slot[slotHead:slotHead+length]), s)
	if err != nil {
		err = errors.New("a frame in a ring: " + err.Error()) // an io.EOF in it is not the end of the connection
	}
	return f, err
}

// take hands the frames in the ring to their groups and, in sequence with them, last: one from the connection, or nil.
func (l *peer) take(last *frame) error {
	l.taking.Lock()
	defer l.taking.Unlock()
	if err := l.empty(); err != nil || last == nil {
		return err
	}
	if last.kind != alive {
		l.mesh.deliver(last)
	}
	l.read.Add(1)
	return l.empty()
}

// empty hands over the ready frames in the ring.
func (l *peer) empty() error {
	if l.in == nil || !l.in.hold() {
		return nil
	}
	defer l.in.drop()
	for l.in.ready(l.read.Load()) {
		f, err := l.in.next()
		if err != nil {
			return err
		}
		l.mesh.deliver(f)
	}
	return nil
}

// look empties the ring for a rank that waits.
func (l *peer) look() {
	if err := l.take(nil); err != nil {
		l.mesh.gone(l.process, err)
	}
}

// sleep releases lock, sleeps until the other process puts a frame into the ring or wake is called, empties the ring
// and locks again. It returns false, with lock held throughout, if the ring is gone.
func (l *peer) sleep(lock sync.Locker) bool {
	s := l.in
	if !s.hold() {
		return false
	}
	defer s.drop()
	s.word(asleep).Add(1)
	seen := s.word(bell).Load()
	lock.Unlock()
	if !s.ready(l.read.Load()) {
		_ = s.futex(futexWait, seen)
	}
	s.word(asleep).Add(math.MaxUint32)
	l.look()
	lock.Lock()
	return true
}
