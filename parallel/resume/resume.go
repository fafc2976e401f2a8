// Package resume keeps the outputs of the evaluations of sampling runs in files, so that a run that was cut off can be
// repeated without computing them again (ADR 37). A Folder says where logs are and bounds what they take, a Log is the
// file of one run. Neither knows what ran nor for whom: a key says which run a log belongs to.
//
// No failure of a file is one of the run: its log is dropped, and evaluations are computed.
package resume

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"patchbay/engine"
)

// Key tells runs with different outputs apart.
type Key [32]byte

// Folder is the place of the logs of one owner.
type Folder struct {
	Root string // has the folders of all owners
	Name string // of this one's in it
	// Most bounds the bytes of all files below Root. Where they would be more, those that were not written to for
	// longest are removed.
	Most int64
	// Spare is how much of the disk is left to others: a log that would take of it is dropped.
	Spare int64
	// Build is the program that computes: another one may compute other bits.
	Build string
	// Dropped is called when a log is dropped, once for each; nil: nobody wants to know.
	Dropped func(error)
}

// Log is the outputs of the evaluations of one run, in order. A run first takes with Next what is there, and then adds
// what it computes. A nil Log has nothing and keeps nothing. It is for one caller at a time.
type Log struct {
	folder *Folder
	path   string
	head   []byte
	file   *os.File // nil: not open
	state  state
	cut    bool   // nothing follows offset
	count  uint32 // evaluations before offset
	offset int64  // 0: there is no head yet
	buf    []byte
}

type state uint8

const (
	reading state = iota
	writing
	ended // the file is closed, and stays as it is
)

// magic begins every file; it changes with the format. The key follows.
const magic = "pbeval1\n"

// frameSize is what precedes the numbers of an evaluation: their bytes in 8, the evaluation's own number in 4, and in 4
// the checksum (Castagnoli) of those twelve and of the numbers.
const frameSize = 16

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(frame, data []byte) uint32 {
	return crc32.Update(crc32.Checksum(frame[:12], castagnoli), castagnoli, data)
}

// Open returns the log of a run. Its file is made with the first evaluation.
func (f *Folder) Open(key Key) *Log {
	return &Log{
		folder: f, path: filepath.Join(f.Root, f.Name, hex.EncodeToString(key[:])),
		head: append([]byte(magic), key[:]...),
	}
}

// Forget removes the logs of an owner.
func (f *Folder) Forget(name string) {
	if filepath.IsLocal(name) && filepath.Clean(name) != "." {
		_ = os.RemoveAll(filepath.Join(f.Root, name)) // Sweep tries again
	}
}

// Sweep removes the logs of all owners that are not to be kept.
func (f *Folder) Sweep(keep func(name string) bool) {
	entries, err := os.ReadDir(f.Root)
	if err != nil {
		return // there is none yet
	}
	for _, e := range entries {
		if !keep(e.Name()) {
			f.Forget(e.Name())
		}
	}
}

// Next returns the outputs of the next evaluation, which must be n numbers. It returns nil from the first one on that
// is not there as a whole.
func (l *Log) Next(n int) []float32 {
	if l == nil || l.state != reading {
		return nil
	}
	values, err := l.read(n)
	if err != nil {
		l.drop(err)
	}
	if values == nil {
		l.state = max(l.state, writing)
		return nil
	}
	l.offset += int64(frameSize + 4*n)
	l.count++
	return values
}

// read reads the evaluation at offset. It returns nil if that is missing, torn, damaged or of another run.
func (l *Log) read(n int) ([]float32, error) {
	if l.file == nil {
		file, err := os.OpenFile(l.path, os.O_RDWR, 0)
		if err != nil {
			return nil, present(err)
		}
		l.file = file
		head := make([]byte, len(l.head))
		if _, err := io.ReadFull(file, head); err != nil || !bytes.Equal(head, l.head) {
			return nil, present(err)
		}
		l.offset = int64(len(head))
	}
	var frame [frameSize]byte
	if _, err := io.ReadFull(l.file, frame[:]); err != nil {
		return nil, present(err)
	}
	if binary.LittleEndian.Uint64(frame[:]) != uint64(4*n) || binary.LittleEndian.Uint32(frame[8:]) != l.count {
		return nil, nil
	}
	values := make([]float32, n)
	data := engine.FromF32(values, n).Buf.Host
	if _, err := io.ReadFull(l.file, data); err != nil {
		return nil, present(err)
	}
	if binary.LittleEndian.Uint32(frame[12:]) != checksum(frame[:], data) {
		return nil, nil
	}
	return values, nil
}

// present returns err unless it says that there is no more to read.
func present(err error) error {
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, fs.ErrNotExist} {
		if errors.Is(err, end) {
			return nil
		}
	}
	return err
}

// Add adds the outputs of the next evaluation, the numbers of all parts in order.
func (l *Log) Add(parts ...[]float32) {
	if l == nil || l.state == ended {
		return
	}
	if err := l.add(parts); err != nil {
		l.drop(err)
	}
}

func (l *Log) add(parts [][]float32) error {
	l.buf = append(l.buf[:0], make([]byte, frameSize)...)
	for _, v := range parts {
		l.buf = append(l.buf, engine.FromF32(v, len(v)).Buf.Host...)
	}
	frame, data := l.buf[:frameSize], l.buf[frameSize:]
	binary.LittleEndian.PutUint64(frame, uint64(len(data)))
	binary.LittleEndian.PutUint32(frame[8:], l.count)
	binary.LittleEndian.PutUint32(frame[12:], checksum(frame, data))
	if !l.cut {
		if err := l.begin(); err != nil {
			return err
		}
	}
	switch room, err := l.folder.room(l.path, l.offset+int64(len(l.buf))); {
	case err != nil:
		return err
	case !room:
		l.Close()
		return nil
	}
	var disk syscall.Statfs_t
	if err := syscall.Fstatfs(int(l.file.Fd()), &disk); err != nil {
		return err
	}
	if free := int64(disk.Bavail) * disk.Bsize; free < l.folder.Spare+int64(len(l.buf)) {
		return fmt.Errorf("%s: the disk has %d bytes left, of which %d are spared: %w", l.path, free, l.folder.Spare,
			syscall.ENOSPC)
	}
	if _, err := l.file.WriteAt(l.buf, l.offset); err != nil {
		return err
	}
	l.offset += int64(len(l.buf))
	l.count++
	return nil
}

// begin cuts off what follows offset, and makes the file if there is none.
func (l *Log) begin() (err error) {
	l.state, l.cut = writing, true
	if l.file == nil {
		if err := os.MkdirAll(filepath.Dir(l.path), 0o700); err != nil {
			return err
		}
		if l.file, err = os.OpenFile(l.path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
			return err
		}
	}
	if err := l.file.Truncate(l.offset); err != nil || l.offset > 0 {
		return err
	}
	n, err := l.file.WriteAt(l.head, 0)
	l.offset = int64(n)
	return err
}

// Close ends the log; its file stays.
func (l *Log) Close() {
	if l == nil {
		return
	}
	l.state = ended
	if l.file != nil {
		_ = l.file.Close() // what was written counts as far as it is whole
		l.file = nil
	}
}

// drop ends the log and removes its file.
func (l *Log) drop(err error) {
	l.Close()
	_ = os.Remove(l.path)
	if l.folder.Dropped != nil {
		l.folder.Dropped(err)
	}
}

// room reports whether the file at a path may grow to so many bytes. It may if it still exists and the bound permits
// it; other files are removed for that.
func (f *Folder) room(path string, size int64) (bool, error) {
	type other struct {
		path string
		info fs.FileInfo
	}
	var others []other
	exists, total := false, size
	err := filepath.WalkDir(f.Root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return present(err)
		}
		if p == path {
			exists = true
			return nil
		}
		info, err := d.Info()
		if err == nil {
			others = append(others, other{p, info})
			total += info.Size()
		}
		return present(err) // its owner may be removing it
	})
	if err != nil || !exists || size > f.Most {
		return false, err
	}
	slices.SortFunc(others, func(a, b other) int { return a.info.ModTime().Compare(b.info.ModTime()) })
	for _, o := range others {
		if total <= f.Most {
			break
		}
		if err := present(os.Remove(o.path)); err != nil {
			return false, err
		}
		total -= o.info.Size()
	}
	return true, nil
}
