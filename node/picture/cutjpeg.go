package picture

import "encoding/binary"

// completeJPEG returns a JPEG file that is cut short as one that ends properly: in the first scan that lacks data, what
// is missing is gray; later scans are gone, and so is an unfinished one that refines AC coefficients.
//
// It does so without decoding pixels: it reads the Huffman codes of the scan as far as they go (ITU T.81, F.2 and G.1)
// and writes them again, followed by blocks whose DC value is 0. The new codes belong to tables of its own, because the
// file's may lack those that are needed.
func completeJPEG(data []byte) []byte {
	s := cutScan{data: data}
	at := 2
	for at+4 <= len(data) && data[at] == 0xff {
		marker, next := data[at+1], at+2+int(binary.BigEndian.Uint16(data[at+2:]))
		if marker == 0xff { // padding
			at++
			continue
		}
		if next < at+4 || next > len(data) {
			break
		}
		body, ok := data[at+4:next], true
		switch marker {
		case 0xc0, 0xc1, 0xc2:
			ok = s.frame(marker == 0xc2, body)
		case 0xc4:
			ok = s.huffmanTables(body)
		case 0xdd:
			if ok = len(body) == 2; ok {
				s.interval = int(binary.BigEndian.Uint16(body))
			}
		case 0xda:
			s.at = next
			if s.refines(body) {
				if ok = s.nextMarker() < len(data); ok {
					next = s.nextMarker()
				}
				break
			}
			if ok = s.header(body); !ok {
				break
			}
			if s.read(); s.short {
				out := append(data[:at:at], s.ownTables()...)
				return append(append(append(out, data[at:next]...), s.out...), 0xff, 0xd9)
			}
			next = s.nextMarker()
		}
		if !ok {
			break
		}
		at = next
	}
	return append(data[:at:at], 0xff, 0xd9)
}

// jpegPart is a component of the picture: its sampling factors, and in a scan its tables and DC prediction.
type jpegPart struct {
	id     byte
	h, v   int
	dc, ac byte
	pred   int
}

// huffman is a Huffman table as the file gives it: how many codes of each length there are, and what they mean.
type huffman struct {
	counts [16]int
	values []byte
}

// cutScan reads a scan and writes it anew.
type cutScan struct {
	data        []byte
	progressive bool
	x, y        int
	parts       []jpegPart
	tables      [2][4]huffman // DC, AC
	interval    int           // MCUs between restart markers, 0: none

	scan                []*jpegPart // components of the scan
	first, last, before int         // Ss, Se, Ah
	run                 int         // blocks left of an end-of-band run

	at          int
	bits, left  uint32
	short       bool // the data has ended
	out         []byte
	acc, filled uint32
}

func (s *cutScan) frame(progressive bool, b []byte) bool {
	if len(b) < 6 || len(b) < 6+3*int(b[5]) || b[0] != 8 || s.parts != nil {
		return false
	}
	s.progressive, s.y, s.x = progressive, int(binary.BigEndian.Uint16(b[1:])), int(binary.BigEndian.Uint16(b[3:]))
	for c := b[6:]; len(s.parts) < int(b[5]); c = c[3:] {
		p := jpegPart{id: c[0], h: int(c[1] >> 4), v: int(c[1] & 15)}
		if p.h < 1 || p.h > 4 || p.v < 1 || p.v > 4 {
			return false
		}
		s.parts = append(s.parts, p)
	}
	return true
}

func (s *cutScan) huffmanTables(b []byte) bool {
	for len(b) > 0 {
		if len(b) < 17 || b[0]>>4 > 1 || b[0]&15 > 3 {
			return false
		}
		var t huffman
		total := 0
		for i, n := range b[1:17] {
			t.counts[i] = int(n)
			total += int(n)
		}
		if len(b) < 17+total {
			return false
		}
		t.values = b[17 : 17+total]
		s.tables[b[0]>>4][b[0]&15] = t
		b = b[17+total:]
	}
	return true
}

// refines reports whether a scan refines AC coefficients: its codes can be read only with the coefficients at hand.
func (s *cutScan) refines(b []byte) bool {
	return s.progressive && len(b) >= 3 && b[len(b)-3] > 0 && b[len(b)-1]>>4 > 0
}

func (s *cutScan) header(b []byte) bool {
	if len(b) < 1 || len(b) != 4+2*int(b[0]) || b[0] < 1 {
		return false
	}
	s.scan, s.run, s.short = nil, 0, false
	for c := b[1 : len(b)-3]; len(c) > 0; c = c[2:] {
		for i := range s.parts {
			if p := &s.parts[i]; p.id == c[0] {
				p.dc, p.ac, p.pred = c[1]>>4&3, c[1]&3, 0
				s.scan = append(s.scan, p)
			}
		}
	}
	s.first, s.last, s.before = int(b[len(b)-3]), int(b[len(b)-2]), int(b[len(b)-1]>>4)
	return len(s.scan) == int(b[0]) && s.last < 64
}

// read reads the scan. If it is short, s.out has all blocks of it.
func (s *cutScan) read() {
	s.bits, s.left, s.out, s.acc, s.filled = 0, 0, nil, 0, 0
	hMost, vMost := 1, 1
	for _, p := range s.parts {
		hMost, vMost = max(hMost, p.h), max(vMost, p.v)
	}
	up := func(a, b int) int { return (a + b - 1) / b }
	count := up(s.x, 8*hMost) * up(s.y, 8*vMost)
	if p := s.scan[0]; len(s.scan) == 1 {
		count = up(up(s.x*p.h, hMost), 8) * up(up(s.y*p.v, vMost), 8)
	}
	for mcu := range count {
		if s.interval > 0 && mcu > 0 && mcu%s.interval == 0 {
			s.restart(byte(mcu/s.interval-1) % 8)
		}
		for _, p := range s.scan {
			blocks := 1
			if len(s.scan) > 1 {
				blocks = p.h * p.v
			}
			for range blocks {
				s.block(p)
			}
		}
	}
	s.pad()
}

// restart passes a restart marker.
func (s *cutScan) restart(n byte) {
	s.bits, s.left, s.run = 0, 0, 0
	for i := range s.parts {
		s.parts[i].pred = 0
	}
	if s.at+2 <= len(s.data) && s.data[s.at] == 0xff && s.data[s.at+1] == 0xd0+n {
		s.at += 2
	} else {
		s.short = true
	}
	s.pad()
	s.out = append(s.out, 0xff, 0xd0+n)
}

// block copies a block, or writes an empty one once the data has ended. Of the block in which it ends the coefficients
// read so far are kept.
func (s *cutScan) block(p *jpegPart) {
	if !s.short && s.copyBlock(p) {
		return
	}
	switch {
	case s.first > 0 && s.run > 0:
		s.run--
	case s.first > 0:
		s.symbol(0)
	case s.before > 0:
		s.put(0, 1)
	default:
		s.difference(-p.pred)
		p.pred = 0
		if !s.progressive {
			s.symbol(0)
		}
	}
}

// copyBlock copies a block. If the data ends in it, what is written is a whole block, too, or nothing and false.
func (s *cutScan) copyBlock(p *jpegPart) bool {
	if s.first == 0 && s.before > 0 {
		bit := s.take(1)
		if !s.short {
			s.put(bit, 1)
		}
		return !s.short
	}
	k := s.first
	if k == 0 {
		n, v := s.code(&s.tables[0][p.dc], 0)
		if s.short = s.short || n > 11; s.short { // 11: the most bits of 8-bit pictures
			return false
		}
		s.symbol(n)
		s.put(v, uint32(n))
		if p.pred += int(v); n > 0 && v>>(n-1) == 0 {
			p.pred -= 1<<n - 1
		}
		k = 1
	}
	if s.run > 0 {
		s.run--
		return true
	}
	if s.first == 0 && s.progressive {
		return true
	}
	for ; k <= s.last; k++ {
		code, v := s.code(&s.tables[1][p.ac], s.first)
		if s.short {
			s.symbol(0)
			return true
		}
		s.symbol(code)
		zeros, n := int(code>>4), code&15
		if n == 0 && zeros < 15 {
			if s.first > 0 { // a run of blocks that end here
				s.run = 1<<zeros + int(v) - 1
				s.put(v, uint32(zeros))
			}
			break
		}
		s.put(v, uint32(n))
		k += zeros
	}
	return true
}

// code reads a Huffman code and the bits that belong to it; band is above 0 where codes for runs of blocks have some.
func (s *cutScan) code(t *huffman, band int) (code byte, extra uint32) {
	word, first, index := 0, 0, 0
	for _, n := range t.counts {
		word |= int(s.take(1))
		if s.short {
			return 0, 0
		}
		if word-first < n {
			code = t.values[index+word-first]
			more := uint32(code & 15)
			if more == 0 && band > 0 && code < 0xf0 {
				more = uint32(code >> 4)
			}
			return code, s.take(more)
		}
		index += n
		first = (first + n) << 1
		word <<= 1
	}
	s.short = true // no such code: what follows cannot be read
	return 0, 0
}

// take reads n bits, at most 15. At the end of the data it sets short.
func (s *cutScan) take(n uint32) uint32 {
	for s.left < n {
		if s.at >= len(s.data) || s.data[s.at] == 0xff && (s.at+1 == len(s.data) || s.data[s.at+1] != 0) {
			s.short = true
			return 0
		}
		s.bits, s.left = s.bits<<8|uint32(s.data[s.at]), s.left+8
		if s.at++; s.data[s.at-1] == 0xff {
			s.at++
		}
	}
	s.left -= n
	return s.bits >> s.left & (1<<n - 1)
}

// difference writes a DC difference.
func (s *cutScan) difference(d int) {
	n := uint32(0)
	for v := max(d, -d); v > 0; v >>= 1 {
		n++
	}
	if d < 0 {
		d += 1<<n - 1
	}
	s.symbol(byte(n))
	s.put(uint32(d), n)
}

// symbol writes a value's code in the tables of ownTables.
func (s *cutScan) symbol(v byte) { s.put(uint32(v), 9) }

func (s *cutScan) put(v, n uint32) {
	s.acc, s.filled = s.acc<<n|v, s.filled+n
	for ; s.filled >= 8; s.filled -= 8 {
		b := byte(s.acc >> (s.filled - 8))
		if s.out = append(s.out, b); b == 0xff {
			s.out = append(s.out, 0)
		}
	}
	s.acc &= 1<<s.filled - 1
}

// pad fills the last byte with ones.
func (s *cutScan) pad() {
	if s.filled > 0 {
		s.put(1<<(8-s.filled)-1, 8-s.filled)
	}
}

// nextMarker returns the position of the next marker that ends a scan.
func (s *cutScan) nextMarker() int {
	for i := s.at; i+1 < len(s.data); i++ {
		if m := s.data[i+1]; s.data[i] == 0xff && m != 0 && m != 0xff && (m < 0xd0 || m > 0xd7) {
			return i
		}
	}
	return len(s.data)
}

// ownTables returns a segment with tables in which the values 0 to 254 are codes of nine bits, for the tables that the
// scan uses.
func (s *cutScan) ownTables() []byte {
	var out []byte
	for _, p := range s.scan {
		for _, id := range []byte{p.dc, 0x10 | p.ac} {
			out = append(out, 0xff, 0xc4, 1, 2+17+255-256, id, 0, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0, 0, 0, 0, 0, 0)
			for v := range 255 {
				out = append(out, byte(v))
			}
		}
	}
	return out
}
