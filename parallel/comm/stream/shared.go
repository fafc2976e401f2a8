package stream

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"patchbay/engine"
)

// Payloads for a process on this machine do not go through the socket: the sender copies them to memory that both
// processes have mapped, and the frame says where. Each connection has such memory for either direction, an anonymous
// file whose sender has it taken piece by piece; the receiver says in the piece that it is free again.
const (
	sharedBytes = 1 << 30 // of addresses in one direction: what is in flight and does not fit goes through the socket
	sharedStep  = 1 << 20 // by which the memory behind them grows
	pieceHead   = 64      // of a piece, before the payload: a word that is not zero while it is in use
	inlineBytes = 4096    // payloads up to this size go with their frames: one call each side
)

// meeting bounds the exchange of descriptors.
const meeting = 15 * time.Second

// shared is memory that this process and another one have mapped. Whoever uses it holds it.
type shared struct {
	data []byte
	fd   int // of the maker, -1 at the other end

	mu     sync.Mutex
	users  int
	ledger *engine.Ledger // counts what is backed
	backed int            // bytes from the beginning that have memory
	pieces []piece        // in use as far as is known, in order
}

// piece is a part of shared memory, with its head.
type piece struct{ at, n int }

// newShared makes memory for what this process sends. l counts it, nil: nobody does.
func newShared(l *engine.Ledger) (*shared, error) {
	fd, err := unix.MemfdCreate("patchbay-ranks", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	if err = unix.Ftruncate(fd, sharedBytes); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	}
	var s *shared
	if err == nil {
		s, err = mapShared(fd)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	s.fd, s.ledger = fd, l
	return s, nil
}

func mapShared(fd int) (*shared, error) {
	data, err := unix.Mmap(fd, 0, sharedBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	return &shared{data: data, fd: -1, users: 1}, nil
}

// openShared maps the memory of the other side, which must not be able to take it away: reading would end this process.
func openShared(fd int) (*shared, error) {
	defer func() { _ = unix.Close(fd) }() // the mapping stays
	var st unix.Stat_t
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 || st.Size != sharedBytes {
		return nil, fmt.Errorf("a descriptor that is not the memory of a connection")
	}
	return mapShared(fd)
}

// hold keeps the memory mapped until drop; false: it is gone.
func (s *shared) hold() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users == 0 {
		return false
	}
	s.users++
	return true
}

// drop gives up a hold.
func (s *shared) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users == 0 {
		return // closed twice
	}
	if s.users--; s.users > 0 {
		return
	}
	_ = unix.Munmap(s.data)
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
		s.ledger.Give(int64(s.backed))
	}
	s.data, s.backed = nil, 0
}

// put copies a payload for the other side and returns where it lies, 0 if there is no room for it.
func (s *shared) put(payload []byte) (at int) {
	if !s.hold() {
		return 0
	}
	defer s.drop()
	if at = s.take(len(payload)); at > 0 {
		copy(s.data[at:], payload)
	}
	return at
}

// take finds room for n bytes: the first there is, so that the same pages are used again and again.
func (s *shared) take(n int) (at int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pieces = slices.DeleteFunc(s.pieces, func(p piece) bool { return s.inUse(p.at).Load() == 0 })
	need, i := pieceHead+(n+pieceHead-1)/pieceHead*pieceHead, 0
	for ; i < len(s.pieces) && s.pieces[i].at-at < need; i++ {
		at = s.pieces[i].at + s.pieces[i].n
	}
	if !s.back(at + need) {
		return 0
	}
	s.inUse(at).Store(1)
	s.pieces = slices.Insert(s.pieces, i, piece{at, need})
	return at + pieceHead
}

// back sees to it that the first n bytes have memory: writing to what the system cannot give would end the process. The
// lock is held.
func (s *shared) back(n int) bool {
	if n <= s.backed || n > len(s.data) {
		return n <= s.backed
	}
	more := min((n+sharedStep-1)/sharedStep*sharedStep, len(s.data)) - s.backed
	if s.ledger.Take(int64(more)) != nil {
		return false
	}
	if unix.Fallocate(s.fd, 0, int64(s.backed), int64(more)) != nil {
		s.ledger.Give(int64(more))
		return false
	}
	s.backed += more
	return true
}

// inUse is the word in the head of a piece.
func (s *shared) inUse(at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&s.data[at])) }

// payload is n bytes that the other side has put at a place. The frame that has them holds the memory.
func (s *shared) payload(at, n uint64) ([]byte, error) {
	if at < pieceHead || at%pieceHead != 0 || at > sharedBytes || n > sharedBytes-at {
		return nil, fmt.Errorf("a payload of %d bytes at %d of shared memory: not this protocol", n, at)
	}
	if !s.hold() {
		return nil, net.ErrClosed
	}
	return s.data[at : at+n : at+n], nil
}

// near is a connection to a process on this machine.
type near struct {
	io.ReadWriteCloser
	out, in *shared // nil: there is none, payloads go through the socket
}

// Close ends the connection. Payloads that have come can still be taken.
func (c near) Close() error {
	err := c.ReadWriteCloser.Close()
	for _, s := range []*shared{c.out, c.in} {
		if s != nil {
			s.drop()
		}
	}
	return err
}

// Share has payloads of connections over unix sockets travel in shared memory: it puts such connections in their place,
// and leaves others as they are. Both sides call it before NewMesh. l counts the memory of this process, nil: nobody
// does. A system that gives no memory is no error. conns are the caller's in any case.
func Share(conns []io.ReadWriteCloser, l *engine.Ledger) error {
	for i, c := range conns {
		u, ok := c.(*net.UnixConn)
		if !ok {
			continue
		}
		own, rights := near{ReadWriteCloser: u}, []byte(nil)
		if s, err := newShared(l); err == nil {
			own.out, rights = s, unix.UnixRights(s.fd)
		}
		conns[i] = own
		if _, _, err := u.WriteMsgUnix([]byte{0}, rights, nil); err != nil {
			return err
		}
	}
	for i, c := range conns { // all have sent before they wait for anybody
		own, ok := c.(near)
		if !ok {
			continue
		}
		in, err := receiveShared(own.ReadWriteCloser.(*net.UnixConn))
		if err != nil {
			return err
		}
		own.in = in
		conns[i] = own
	}
	return nil
}

// receiveShared takes the memory of the other side, nil if it has none.
func receiveShared(c *net.UnixConn) (*shared, error) {
	_ = c.SetReadDeadline(time.Now().Add(meeting))
	defer func() { _ = c.SetReadDeadline(time.Time{}) }()
	rights := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), rights)
	if err != nil || n == 0 {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("%d messages with descriptors: not this protocol", len(messages))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("%d descriptors: not this protocol", len(fds))
	}
	return openShared(fds[0])
}
