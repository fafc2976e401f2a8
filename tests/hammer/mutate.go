package hammer

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
)

// maxInput bounds mutated inputs in bytes.
const maxInput = 4 << 10

// mutator makes inputs from a corpus. The bytes of an input are valid until the next one is made.
type mutator struct {
	rnd    *rand.Rand
	corpus []Input // seeds and refused inputs
	good   []Input // accepted inputs
	buf    []byte
	spare  []byte
}

// mutate returns a corpus entry with one to four changes.
func (m *mutator) mutate() Input {
	in := m.pick()
	m.buf = append(m.buf[:0], in.Data[:min(len(in.Data), maxInput)]...)
	for range 1 + m.rnd.IntN(2)*m.rnd.IntN(4) {
		m.change()
	}
	if len(m.buf) > maxInput {
		m.buf = m.buf[:maxInput]
	}
	return Input{m.buf, in.Flag}
}

// pick takes an entry of the corpus, half of the time an accepted one.
func (m *mutator) pick() Input {
	if len(m.good) > 0 && m.rnd.IntN(2) == 0 {
		return m.good[m.rnd.IntN(len(m.good))]
	}
	return m.corpus[m.rnd.IntN(len(m.corpus))]
}

// change makes one change to buf.
func (m *mutator) change() {
	r, n := m.rnd, len(m.buf)
	if n == 0 {
		m.buf = append(m.buf, byte(r.Uint32()))
		return
	}
	at := r.IntN(n)
	switch r.IntN(16) {
	case 0:
		m.buf[at] ^= 1 << r.IntN(8)
	case 1:
		m.buf[at] = byte(r.Uint32())
	case 2, 3:
		m.buf[at] = telling[r.IntN(len(telling))]
	case 4:
		m.buf[at] += byte(r.IntN(9) - 4)
	case 5, 6:
		m.length(at)
	case 7: // insert some bytes
		m.replace(at, at, m.random())
	case 8: // delete a range
		m.replace(at, at+m.short(n-at), nil)
	case 9: // duplicate a range, once or many times
		from := m.buf[at : at+m.short(n-at)]
		m.spare = m.spare[:0]
		for range 1 << (r.IntN(3) * r.IntN(4)) {
			if m.spare = append(m.spare, from...); len(m.spare) > maxInput {
				break
			}
		}
		m.replace(at, at, m.spare)
	case 10, 11: // insert a range of another entry, or replace one with it
		other := m.pick().Data
		if len(other) == 0 {
			return
		}
		i := r.IntN(len(other))
		piece := other[i : i+m.short(len(other)-i)]
		m.spare = append(m.spare[:0], piece...)
		m.replace(at, at+m.short(n-at)*r.IntN(2), m.spare)
	case 12: // continue with the tail of another entry
		other := m.pick().Data
		if len(other) == 0 {
			return
		}
		m.buf = append(m.buf[:at], other[r.IntN(len(other)):]...)
	case 13:
		m.buf = m.buf[:at]
	case 14, 15: // another letter or digit: texts and names change, the structure does not
		for range n {
			if c := m.buf[at]; c >= '0' && c <= '9' {
				m.buf[at] = '0' + byte(r.IntN(10))
				return
			} else if c|0x20 >= 'a' && c|0x20 <= 'z' {
				m.buf[at] = 'a' + byte(r.IntN(26))
				return
			}
			at = (at + 1) % n
		}
	}
}

// telling are bytes with a meaning in msgpack, JSON, PNG and headers, and the bounds of their ranges.
const telling = "\x00\x01\x02\x04\x08\x10\x7f\x80\x81\x8f\x90\x91\x9f\xa0\xa1" +
	"\xbf\xc0\xc1\xc2\xc4\xc5\xc6\xc7\xc8\xc9\xca\xcb\xcf\xd3\xd4\xd8\xd9\xda\xdb\xdc\xdd\xde\xdf\xe0\xfe\xff" +
	"\"\\{}[]:,. \n-+0189eEtfnNI$/*>"

// length writes an extreme number of 1, 2, 4 or 8 bytes where a length may stand.
func (m *mutator) length(at int) {
	extremes := [...]uint64{
		0, 1, 0x7f, 0x80, 0xff, 0x100, 0x7fff, 0x8000, 0xffff, 0x10000, 1 << 20, 0x7fffffff, 0x80000000, 0xffffffff, 1 << 32,
		math.MaxInt64, 1 << 63, math.MaxUint64,
		uint64(len(m.buf)), uint64(len(m.buf) - at), uint64(len(m.buf)-at) - 1, uint64(len(m.buf)-at) + 1,
	}
	v := extremes[m.rnd.IntN(len(extremes))]
	var b [8]byte
	size := 1 << m.rnd.IntN(4)
	if m.rnd.IntN(4) > 0 {
		binary.BigEndian.PutUint64(b[:], v<<(64-8*size))
	} else {
		binary.LittleEndian.PutUint64(b[:], v)
	}
	copy(m.buf[at:], b[:size])
}

// random returns 1 to 16 bytes, all random or all the same.
func (m *mutator) random() []byte {
	m.spare = m.spare[:0]
	same, c := m.rnd.IntN(2) == 0, telling[m.rnd.IntN(len(telling))]
	for range 1 + m.rnd.IntN(16) {
		if !same {
			c = byte(m.rnd.Uint32())
		}
		m.spare = append(m.spare, c)
	}
	return m.spare
}

// short returns a length from 1 to n, mostly a short one.
func (m *mutator) short(n int) int {
	if m.rnd.IntN(4) > 0 {
		n = min(n, 16)
	}
	return 1 + m.rnd.IntN(n)
}

// replace replaces buf[from:to] with piece, which must not lie in buf, unless the result would exceed maxInput.
func (m *mutator) replace(from, to int, piece []byte) {
	if len(m.buf)-(to-from)+len(piece) > maxInput {
		return
	}
	tail := len(m.buf) - to
	grown := len(m.buf) - (to - from) + len(piece)
	for cap(m.buf) < grown {
		m.buf = append(m.buf[:cap(m.buf)], 0)
	}
	old := m.buf[to : to+tail]
	m.buf = m.buf[:grown]
	copy(m.buf[from+len(piece):], old)
	copy(m.buf[from:], piece)
}
