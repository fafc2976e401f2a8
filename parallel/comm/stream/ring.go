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

// Frames for a process on this machine lie in a ring at the beginning of the memory that both share. The rank that
// waits for one takes it from there itself, and sleeps on a futex meanwhile: no goroutine hands it over, and one that
// comes while ranks compute wakes nobody. Aborts and signs of life go through the socket, which a goroutine reads all
// the time, and so does what finds no slot.
const (
	slots     = 64  // of frames that nobody has taken
	slotBytes = 256 // of a slot: after, length, and a frame without its payload
	slotHead  = 8
	ringHead  = 2 * pieceHead // the words of the sender, and those of the receiver
	ringBytes = ringHead + slots*slotBytes
)

// The words of a ring.
const (
	bell   = 0             // a futex, which changes when those who sleep are to look
	put    = 4             // frames that were put into it so far
	taken  = pieceHead     // frames that were taken out of it so far
	asleep = pieceHead + 4 // who sleeps, or is about to
)

// Operations of futex(2), on memory of several processes.
const (
	futexWait = 0
	futexWake = 1
)

// word is a word of the ring or of a piece, which both processes change.
func (s *shared) word(at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&s.data[at])) }

// slot is that of a frame, by number.
func (s *shared) slot(n uint32) []byte {
	return s.data[ringHead+int(n%slots)*slotBytes:][:slotBytes]
}

// post puts the head of a frame into the ring; after is how many frames went through the socket before it. false: there
// is no room.
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

// wake has those who sleep on the ring look: who changes what they look for either sees them, or is seen by them.
func (s *shared) wake() {
	if s.word(asleep).Load() > 0 {
		s.word(bell).Add(1)
		_ = s.futex(futexWake, math.MaxInt32)
	}
}

// futex calls the operation on the bell.
func (s *shared) futex(operation int, value uint32) unix.Errno {
	_, _, no := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&s.data[bell])), uintptr(operation), uintptr(value),
		0, 0, 0)
	return no
}

// ready reports whether the oldest frame can be taken: there is one, and so many were read from the socket before it.
func (s *shared) ready(read uint32) bool {
	n := s.word(taken).Load()
	return s.word(put).Load() != n && binary.LittleEndian.Uint32(s.slot(n)) == read
}

// next takes the oldest frame, which is ready.
func (s *shared) next() (*frame, error) {
	n := s.word(taken).Load()
	slot := string(s.slot(n)) // the other side may still write to its own
	there, length := s.word(put).Load()-n, binary.LittleEndian.Uint32([]byte(slot[4:]))
	if there > slots || length > slotBytes-slotHead {
		return nil, fmt.Errorf("%d frames in a ring of %d, the first of %d bytes: not this protocol", there, slots, length)
	}
	s.word(taken).Store(n + 1)
	f, err := readFrame(strings.NewReader(slot[slotHead:slotHead+length]), s)
	if err != nil {
		err = errors.New("a frame in a ring: " + err.Error()) // its end is not that of the connection
	}
	return f, err
}

// take hands the frames in the ring to their groups, and in its turn one that came through the connection, if not nil.
func (l *link) take(last *frame) error {
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

// empty hands over what there is in the ring.
func (l *link) empty() error {
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

// look takes what there is in the ring for a rank that waits.
func (l *link) look() {
	if err := l.take(nil); err != nil {
		l.mesh.gone(l.process, err)
	}
}

// sleep sleeps, without the lock, until the other process puts a frame into the ring, or wake is called, and takes what
// there is then. false: there is no ring any more.
func (l *link) sleep(lock sync.Locker) bool {
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
