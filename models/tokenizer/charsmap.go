package tokenizer

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/rivo/uniseg"
)

// charsmap is SentencePiece's precompiled normalization table: a Darts-clone double array that maps byte strings to
// offsets in a blob of NUL-terminated replacements. Layout: u32 little-endian size of the array in bytes, the array of
// u32 units, the blob (SentencePiece src/normalizer.cc, DecodePrecompiledCharsMap).
type charsmap struct {
	units []uint32
	blob  []byte
}

// longestReplacement bounds one replacement, so that a hostile table cannot blow up a text. NFKC's longest is 33 bytes.
const longestReplacement = 256

// parseCharsmap decodes the table. It returns nil without an error for an empty one (the identity).
func parseCharsmap(data []byte) (*charsmap, error) {
	if len(data) == 0 {
		return nil, nil
	}
	if len(data) < 4 {
		return nil, fmt.Errorf("precompiled charsmap has %d bytes, the header alone needs 4", len(data))
	}
	size := int64(binary.LittleEndian.Uint32(data))
	if size == 0 || size%4 != 0 || size > int64(len(data)-4) {
		return nil, fmt.Errorf("precompiled charsmap announces a trie of %d bytes (must be a multiple of 4 and fit in %d)",
			size, len(data)-4)
	}
	c := &charsmap{units: make([]uint32, size/4), blob: bytes.Clone(data[4+size:])}
	for i := range c.units {
		c.units[i] = binary.LittleEndian.Uint32(data[4+4*i:])
	}
	return c, nil
}

// match looks up the prefixes of text in the table and takes the longest one (SentencePiece) or the shortest (as the
// spm_precompiled crate of the tokenizers library does). It returns the replacement and the prefix's length.
func (c *charsmap) match(text string, longest bool) (replacement string, length int, ok bool) {
	offset := func(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }
	value, at := uint32(0), offset(c.units[0])
	for i := 0; i < len(text) && text[i] != 0; i++ {
		at ^= uint32(text[i])
		if int64(at) >= int64(len(c.units)) {
			break
		}
		unit := c.units[at]
		if unit&(1<<31|0xff) != uint32(text[i]) {
			break
		}
		at ^= offset(unit)
		if unit>>8&1 == 0 {
			continue
		}
		if int64(at) >= int64(len(c.units)) {
			break
		}
		value, length = c.units[at]&(1<<31-1), i+1
		if !longest {
			break
		}
	}
	if length == 0 || int64(value) >= int64(len(c.blob)) {
		return "", 0, false
	}
	tail := c.blob[value:]
	end := bytes.IndexByte(tail[:min(len(tail), longestReplacement)], 0)
	if end < 0 || !utf8.Valid(tail[:end]) {
		return "", 0, false
	}
	return string(tail[:end]), length, true
}

// normalizeGraphemes applies the table as the tokenizers library does: a grapheme cluster shorter than 6 bytes is
// replaced as a whole by the replacement of its shortest prefix in the table. In all others, and where there is none,
// each character is looked up on its own.
func (c *charsmap) normalizeGraphemes(text string) string {
	var out strings.Builder
	out.Grow(len(text))
	state := -1
	for text != "" {
		var cluster string
		cluster, text, _, state = uniseg.FirstGraphemeClusterInString(text, state)
		if len(cluster) < 6 {
			if replacement, _, ok := c.match(cluster, false); ok {
				out.WriteString(replacement)
				continue
			}
		}
		for i, r := range cluster {
			part := cluster[i : i+utf8.RuneLen(r)]
			if replacement, _, ok := c.match(part, false); ok {
				part = replacement
			}
			out.WriteString(part)
		}
	}
	return out.String()
}
