package stream

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"patchbay/engine"
)

// Payloads for a process on this machine do not go through the socket: the sender copies them to memory that both
// processes have mapped, and the frame says where. Each connection has such memory for either direction: an anonymous
// file whose sender allocates pieces of it. The receiver marks a piece as free in the piece itself.
const (
	sharedBytes = 1 << 30 // maximum address space per direction: what does not fit goes through the socket
	sharedStep  = 1 << 20 // step by which the memory behind it grows
	sharedPart  = 8       // if address space is limited, all of them together take one part in this many
	pieceHead   = 64      // head of a piece, before the payload: a word that is not zero while the piece is in use
	inlineBytes = 4096    // payloads up to this size are written together with their frames
)

// meeting is the time limit for the exchange of file descriptors.
const meeting = 15 * time.Second

// shared is memory that this process and another one have mapped. Its users must hold it (hold and drop).
type shared struct {
	data []byte
	fd   int // only of the sender; -1 at the receiver

	mu     sync.Mutex
	users  int
	ledger *engine.Ledger // counts what is backed, or the whole address range
	whole  bool           // ledger counts the whole address range
	backed int            // bytes from the beginning that have memory behind them
	pieces []piece        // not known to be free, in order
}

// piece is a range of shared memory, including its head.
type piece struct{ at, n int }

// room describes what this process can spend on shared memory.
type room struct {
	bytes  int            // address space per direction of a connection
	whole  bool           // address space is limited: what is mapped counts, whether backed or not
	ledger *engine.Ledger // counts it; nil: it is not counted
}

// newRoom returns the room for that many connections. Under a limit of address space (ulimit -v) all of them together
// get a fraction of the ledger's room, nothing without a ledger. A file larger than the limit (ulimit -f) would kill
// the process that makes it.
func newRoom(connections int, l *engine.Ledger) room {
	r := room{bytes: sharedBytes, ledger: l}
	if r.whole = limitOf(unix.RLIMIT_AS) < math.MaxInt64; r.whole {
		r.bytes = int(min(sharedBytes, l.Room()/sharedPart/int64(2*connections)))
	}
	r.bytes = int(min(int64(r.bytes), limitOf(unix.RLIMIT_FSIZE))) / sharedStep * sharedStep
	return r
}

// limitOf returns a resource limit of this process, MaxInt64 if there is none.
func limitOf(resource int) int64 {
	var r unix.Rlimit
	if err := unix.Getrlimit(resource, &r); err != nil || r.Cur > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(r.Cur)
}

// errNoRoom means that the system or the ledger has no room for shared memory. Payloads then go through the socket.
var errNoRoom = errors.New("no room for shared memory")

// newShared makes memory for what this process sends.
func newShared(r room) (*shared, error) {
	if r.bytes == 0 {
		return nil, errNoRoom
	}
	fd, err := unix.MemfdCreate("patchbay-ranks", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	if err = unix.Ftruncate(fd, int64(r.bytes)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	}
	var s *shared
	if err == nil {
		err = unix.Fallocate(fd, 0, 0, ringBytes) // too little to count
	}
	if err == nil {
		s, err = r.mapShared(fd, r.bytes)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	if s.fd = fd; s.futex(futexWake, 0) != 0 {
		s.drop()
		return nil, errNoRoom // or no futexes on it
	}
	return s, nil
}

// mapShared maps a file of that many bytes.
func (r room) mapShared(fd, bytes int) (*shared, error) {
	s := &shared{fd: -1, users: 1, ledger: r.ledger, whole: r.whole}
	if r.whole && (bytes > r.bytes || r.ledger.Take(int64(bytes)) != nil) {
		return nil, errNoRoom
	}
	data, err := unix.Mmap(fd, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if s.data = data; err == nil {
		return s, nil
	}
	if r.whole {
		r.ledger.Give(int64(bytes))
	}
	if errors.Is(err, unix.ENOMEM) {
		err = errNoRoom
	}
	return nil, err
}

// openShared maps the memory of the other side, which must be sealed against shrinking: reading past its end would kill
// this process.
func (r room) openShared(fd int) (*shared, error) {
	defer func() { _ = unix.Close(fd) }() // the mapping remains
	var st unix.Stat_t
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 || st.Size < sharedStep || st.Size > sharedBytes {
		return nil, fmt.Errorf("a descriptor that is not the memory of a connection")
	}
	return r.mapShared(fd, int(st.Size))
}

// hold keeps the memory mapped until drop. It returns false if the memory is gone.
func (s *shared) hold() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users == 0 {
		return false
	}
	s.users++
	return true
}

// drop releases a hold; the last one unmaps the memory.
func (s *shared) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users == 0 {
		return // closed twice
	}
	if s.users--; s.users > 0 {
		return
	}
	counted := s.backed
	if s.whole {
		counted = len(s.data)
	}
	_ = unix.Munmap(s.data)
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
	}
	s.ledger.Give(int64(counted))
	s.data, s.backed = nil, 0
}

// put copies a payload for the other side and returns its offset, 0 if there is no room for it.
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

// take allocates n bytes, first fit, so that the same pages are reused. It returns 0 if there is no room.
func (s *shared) take(n int) (at int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pieces = slices.DeleteFunc(s.pieces, func(p piece) bool { return s.word(p.at).Load() == 0 })
	at = ringBytes
	need, i := pieceHead+(n+pieceHead-1)/pieceHead*pieceHead, 0
	for ; i < len(s.pieces) && s.pieces[i].at-at < need; i++ {
		at = s.pieces[i].at + s.pieces[i].n
	}
	if !s.back(at + need) {
		return 0
	}
	s.word(at).Store(1)
	s.pieces = slices.Insert(s.pieces, i, piece{at, need})
	return at + pieceHead
}

// back ensures that the first n bytes have memory behind them: writing where the system cannot provide it would kill
// the process. The caller must hold s.mu.
func (s *shared) back(n int) bool {
	if n <= s.backed || n > len(s.data) {
		return n <= s.backed
	}
	more := min((n+sharedStep-1)/sharedStep*sharedStep, len(s.data)) - s.backed
	counted := int64(more)
	if s.whole {
		counted = 0
	}
	if s.ledger.Take(counted) != nil {
		return false
	}
	if unix.Fallocate(s.fd, 0, int64(s.backed), int64(more)) != nil {
		s.ledger.Give(counted)
		return false
	}
	s.backed += more
	return true
}

// payload returns the n bytes that the other side has put at an offset. The frame that has them holds the memory.
func (s *shared) payload(at, n uint64) ([]byte, error) {
	if !s.hold() {
		return nil, net.ErrClosed
	}
	if all := uint64(len(s.data)); at < ringBytes+pieceHead || at%pieceHead != 0 || at > all || n > all-at {
		s.drop()
		return nil, fmt.Errorf("a payload of %d bytes at %d of %d of shared memory: not this protocol", n, at, all)
	}
	return s.data[at : at+n : at+n], nil
}

// near is a connection to a process on this machine.
type near struct {
	*net.UnixConn
	out, in *shared // nil: none, payloads go through the socket
}

// Close closes the connection. Payloads that have arrived can still be taken.
func (c *near) Close() error {
	err := c.UnixConn.Close()
	for _, s := range []*shared{c.out, c.in} {
		if s != nil {
			s.drop()
		}
	}
	return err
}

// Share makes payloads of connections over unix sockets travel in shared memory: it replaces such connections in conns,
// and leaves others unchanged. Both sides must call it before NewMesh. l counts the memory of this process and may be
// nil. It is not an error if a system provides no memory to either side. The caller keeps ownership of conns.
func Share(conns []io.ReadWriteCloser, l *engine.Ledger) error {
	var unixConns []*near
	for i, c := range conns {
		if u, ok := c.(*net.UnixConn); ok {
			n := &near{UnixConn: u}
			unixConns, conns[i] = append(unixConns, n), n
		}
	}
	r := newRoom(max(1, len(unixConns)), l)
	for _, n := range unixConns {
		var rights []byte
		if s, err := newShared(r); err == nil {
			n.out, rights = s, unix.UnixRights(s.fd)
		}
		if _, _, err := n.WriteMsgUnix([]byte{0}, rights, nil); err != nil {
			return err
		}
	}
	for _, n := range unixConns { // all sides send before they wait
		has := []byte{1}
		var err error
		if n.in, err = r.receive(n.UnixConn); n.in == nil {
			has[0] = 0
		}
		if err == nil {
			_, err = n.Write(has)
		}
		if err != nil {
			return err
		}
	}
	for _, n := range unixConns { // the other side may have no room to map the memory
		has, err := readWord(n.UnixConn)
		if err != nil {
			return err
		}
		if !has && n.out != nil {
			n.out.drop()
			n.out = nil
		}
	}
	return nil
}

// readWord reads whether the other side has mapped what it was sent.
func readWord(c *net.UnixConn) (has bool, err error) {
	_ = c.SetReadDeadline(time.Now().Add(meeting))
	defer func() { _ = c.SetReadDeadline(time.Time{}) }()
	var word [1]byte
	if _, err = io.ReadFull(c, word[:]); err == nil && word[0] > 1 {
		err = fmt.Errorf("%d for whether it shares memory: not this protocol", word[0])
	}
	return word[0] == 1, err
}

// receive maps the memory of the other side. It returns nil if the other side has none or this side has no room for it.
func (r room) receive(c *net.UnixConn) (*shared, error) {
	_ = c.SetReadDeadline(time.Now().Add(meeting))
	defer func() { _ = c.SetReadDeadline(time.Time{}) }()
	rights := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), rights)
	if err != nil || n == 0 { // no descriptor arrives for a file that this process may not open
		return nil, err
	}
	var fds []int
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	for i := range messages {
		if list, bad := unix.ParseUnixRights(&messages[i]); bad == nil {
			fds = append(fds, list...)
		}
	}
	if err != nil || len(fds) != 1 {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return nil, fmt.Errorf("%d descriptors: not this protocol", len(fds))
	}
	s, err := r.openShared(fds[0])
	if errors.Is(err, errNoRoom) {
		return nil, nil
	}
	return s, err
}
