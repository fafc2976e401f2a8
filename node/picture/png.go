package picture

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/adler32"
	"hash/crc32"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"patchbay/fault"
	"patchbay/node/pyjson"
)

// textChunk is one key and value of a PNG's text.
type textChunk struct{ key, value string }

const pngSignature = "\x89PNG\r\n\x1a\n"

// maxTexts bounds the bytes of all texts of a PNG, compressed ones after inflation.
const maxTexts = 64 << 20

// EncodePNG writes 8-bit pixels [Y, X, C] (C 1, 3 or 4) as a PNG with one tEXt chunk per text, in order, between header
// and pixels, as ComfyUI's pictures have them (PNG specification, third edition). Texts outside Latin-1 become iTXt. It
// panics if the pixels do not fit the shape.
func EncodePNG(pixels []byte, y, x, c int, texts ...[2]string) []byte {
	if len(pixels) != y*x*c || (c != 1 && c != 3 && c != 4) || x == 0 || y == 0 {
		panic(fmt.Sprintf("png: %d bytes for a picture [%d, %d, %d]", len(pixels), y, x, c))
	}
	var b bytes.Buffer
	writeHeader(&b, y, x, c)
	for _, t := range texts {
		kind, body := encodeText(t[0], t[1])
		writeChunk(&b, kind, body)
	}
	writeChunk(&b, "IDAT", deflateRows(pixels, y, x*c, c, pngLevel))
	writeChunk(&b, "IEND", nil)
	return b.Bytes()
}

// pngLevel is how much pictures are compressed, of 0 to 9, as ComfyUI's are.
const pngLevel = 4

// writeHeader writes the signature and the header of 8-bit pixels [Y, X, C].
func writeHeader(b *bytes.Buffer, y, x, c int) {
	b.WriteString(pngSignature)
	header := make([]byte, 13)
	binary.BigEndian.PutUint32(header, uint32(x))
	binary.BigEndian.PutUint32(header[4:], uint32(y))
	header[8], header[9] = 8, map[int]byte{1: 0, 3: 2, 4: 6}[c]
	writeChunk(b, "IHDR", header)
}

func writeChunk(b *bytes.Buffer, kind string, body []byte) {
	var n [4]byte
	binary.BigEndian.PutUint32(n[:], uint32(len(body)))
	b.Write(n[:])
	b.WriteString(kind)
	b.Write(body)
	sum := crc32.Update(crc32.ChecksumIEEE([]byte(kind)), crc32.IEEETable, body)
	binary.BigEndian.PutUint32(n[:], sum)
	b.Write(n[:])
}

// encodeText returns a tEXt chunk, or an uncompressed iTXt chunk for text outside Latin-1.
func encodeText(key, value string) (kind string, body []byte) {
	latin := make([]byte, 0, len(value))
	for _, r := range value {
		if r > 0xff {
			return "iTXt", append(append([]byte(key), 0, 0, 0, 0, 0), value...)
		}
		latin = append(latin, byte(r))
	}
	return "tEXt", append(append([]byte(key), 0), latin...)
}

// deflateRows filters every row with the filter of least absolute sum (PNG specification 12.7) and compresses the
// result.
func deflateRows(pixels []byte, rows, stride, bpp, level int) []byte {
	var out bytes.Buffer
	z, err := zlib.NewWriterLevel(&out, level)
	if err != nil {
		panic(err) // callers give levels of 0 to 9
	}
	previous := make([]byte, stride)
	trial, best := make([]byte, stride+1), make([]byte, stride+1)
	for r := range rows {
		row := pixels[r*stride : (r+1)*stride]
		least := -1
		for f := byte(0); f < 5; f++ {
			trial[0] = f
			if sum := filterRow(trial[1:], row, previous, bpp, f); least < 0 || sum < least {
				least = sum
				trial, best = best, trial
			}
		}
		_, _ = z.Write(best) // a bytes.Buffer does not fail
		previous = row
	}
	_ = z.Close()
	return out.Bytes()
}

// filterRow writes one filtered row and returns the sum of its bytes taken as signed numbers.
func filterRow(dst, row, up []byte, bpp int, filter byte) int {
	sum := 0
	for i, v := range row {
		var left, corner byte
		if i >= bpp {
			left, corner = row[i-bpp], up[i-bpp]
		}
		switch filter {
		case 1:
			v -= left
		case 2:
			v -= up[i]
		case 3:
			v -= byte((int(left) + int(up[i])) / 2)
		case 4:
			v -= paeth(left, up[i], corner)
		}
		dst[i] = v
		sum += int(max(int8(v), -int8(v)))
	}
	return sum
}

func paeth(a, b, c byte) byte {
	p := int(a) + int(b) - int(c)
	pa, pb, pc := abs(p-int(a)), abs(p-int(b)), abs(p-int(c))
	switch {
	case pa <= pb && pa <= pc:
		return a
	case pb <= pc:
		return b
	}
	return c
}

func abs(v int) int { return max(v, -v) }

// HasTexts reports whether a file is of a format in which ComfyUI stores workflows: PNG, WebP or JPEG.
func HasTexts(data []byte) bool { return textFormat(data) != "" }

func textFormat(data []byte) string {
	for _, c := range codecs()[:3] {
		if c.is(data) {
			return c.name
		}
	}
	return ""
}

// exifTexts returns the texts "key:value" of the first directory of EXIF data, where ComfyUI's SaveAnimatedWEBP writes
// them.
func exifTexts(b []byte) (out []textChunk) {
	if len(b) < 8 {
		return nil
	}
	var order binary.ByteOrder = binary.LittleEndian
	if b[0] == 'M' {
		order = binary.BigEndian
	}
	at := uint64(order.Uint32(b[4:]))
	if at+2 > uint64(len(b)) {
		return nil
	}
	end, left := at+2+12*uint64(order.Uint16(b[at:])), uint64(len(b))
	for e := at + 2; e < end && e+12 <= uint64(len(b)); e += 12 {
		n, from := uint64(order.Uint32(b[e+4:])), e+8
		if n > 4 { // a longer one does not fit into its entry
			from = uint64(order.Uint32(b[e+8:]))
		}
		if order.Uint16(b[e+2:]) != 2 || from+n > uint64(len(b)) || n > left {
			continue // no text, one that is cut off, or bytes that are read again and again
		}
		left -= n
		key, value, _ := strings.Cut(strings.TrimRight(string(b[from:from+n]), "\x00"), ":")
		out = append(out, textChunk{key: key, value: value})
	}
	return out
}

// WorkflowFrom reads the workflow that ComfyUI (and this program) stores in its pictures. prompt is the JSON text
// of the API-format graph, or else of the graph in the editor's format. extra holds all other texts that are JSON, by
// key ("workflow"). It returns an error that lists the texts if there is neither graph.
func WorkflowFrom(data []byte) (prompt []byte, extra map[string]any, err error) {
	var texts []textChunk
	if format := textFormat(data); format == "WebP" || format == "JPEG" {
		texts = exifTexts(exif(format, data))
	} else {
		texts, err = readTexts(data)
	}
	if err != nil {
		return nil, nil, err
	}
	extra = map[string]any{}
	var keys []string
	var workflow []byte
	for _, t := range texts {
		keys = append(keys, t.key)
		if t.key == "prompt" {
			prompt = []byte(t.value)
			continue
		}
		if t.key == "workflow" {
			workflow = []byte(t.value)
		}
		if v, err := pyjson.Decode([]byte(t.value)); err == nil {
			extra[t.key] = v
		}
	}
	if prompt == nil {
		prompt = workflow
	}
	if prompt == nil {
		return nil, extra, fmt.Errorf("the picture holds no workflow to run (no text called \"prompt\" or \"workflow\"; "+
			"it has: %s)", fault.List(keys))
	}
	if _, err := pyjson.Decode(prompt); err != nil {
		return nil, extra, fmt.Errorf("the picture's workflow is not JSON: %w", err)
	}
	return prompt, extra, nil
}

// readTexts returns all text chunks of a PNG in order. It ignores their checksums: 47 of 174 example pictures of
// ComfyUI had their texts rewritten by a tool that puts UTF-8 into tEXt and a wrong checksum behind it, and ComfyUI's
// editor opens them.
func readTexts(data []byte) ([]textChunk, error) {
	if len(data) < 8 || string(data[:8]) != pngSignature {
		return nil, fmt.Errorf("not a PNG file")
	}
	var out []textChunk
	total := 0
	for rest := data[8:]; len(rest) >= 12; {
		n := binary.BigEndian.Uint32(rest)
		kind := string(rest[4:8])
		if uint64(n)+12 > uint64(len(rest)) {
			return nil, fmt.Errorf("PNG chunk %q of %d bytes is cut off", kind, n)
		}
		body := rest[8 : 8+n]
		rest = rest[12+n:]
		if kind == "IEND" {
			break
		}
		t, ok, err := decodeText(kind, body, maxTexts-total)
		if err != nil {
			return nil, err
		}
		if ok {
			total += len(t.value)
			out = append(out, t)
		}
	}
	return out, nil
}

// onlyPixels removes the chunks that do not affect the pixels, so that a text with a wrong checksum does not keep the
// picture from being read (ComfyUI reads such files too, with Pillow's LOAD_TRUNCATED_IMAGES). From a chunk that is
// cut off on, the data stays as it is. The transparent value of a gray picture of 1, 2 or 4 bits goes too: ComfyUI
// ignores it.
func onlyPixels(data []byte) []byte {
	narrow := len(data) > 25 && data[24] < 8 && data[25] == 0
	out := append(make([]byte, 0, len(data)), data[:len(pngSignature)]...)
	for rest := data[len(pngSignature):]; len(rest) >= 12; {
		n := uint64(binary.BigEndian.Uint32(rest)) + 12
		if n > uint64(len(rest)) {
			return append(out, rest...)
		}
		if ancillary := rest[4]&0x20 != 0; !ancillary || string(rest[4:8]) == "tRNS" && !narrow {
			out = append(out, rest[:n]...)
		}
		rest = rest[n:]
	}
	return out
}

// completePNG returns a PNG file that is cut short as one that ends properly, what is missing being zero, as in Pillow.
// It returns nil for whole files, for interlaced pictures, which Pillow refuses, and if no pixels are there.
func completePNG(data []byte) []byte {
	var packed, out bytes.Buffer
	out.WriteString(pngSignature)
	whole := pngChunks(data)
	rest := data[len(pngSignature):]
	for _, c := range whole {
		rest = rest[12+len(c.data):]
		switch c.id {
		case "IHDR", "PLTE", "tRNS":
			writeChunk(&out, c.id, c.data)
		case "IDAT":
			packed.Write(c.data)
		}
	}
	if len(rest) > 8 && string(rest[4:8]) == "IDAT" {
		packed.Write(rest[8:])
	}
	if len(whole) == 0 || whole[len(whole)-1].id == "IEND" || whole[0].id != "IHDR" || len(whole[0].data) != 13 ||
		whole[0].data[12] != 0 {
		return nil
	}
	head := whole[0].data
	samples := map[byte]uint64{0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[head[9]]
	size := uint64(binary.BigEndian.Uint32(head[4:])) *
		(1 + (uint64(binary.BigEndian.Uint32(head))*samples*uint64(head[8])+7)/8)
	z, err := zlib.NewReader(&packed)
	if err != nil {
		return nil
	}
	pixels := make([]byte, size)
	if n, _ := io.ReadFull(z, pixels); n == 0 { // how the data ends does not matter
		return nil
	}
	again := []byte{0x78, 1} // stored blocks (RFC 1950, RFC 1951)
	for at := 0; at < len(pixels); at += 0xffff {
		block := pixels[at:min(at+0xffff, len(pixels))]
		last := byte(0)
		if at+len(block) == len(pixels) {
			last = 1
		}
		again = binary.LittleEndian.AppendUint16(append(again, last), uint16(len(block)))
		again = append(binary.LittleEndian.AppendUint16(again, ^uint16(len(block))), block...)
	}
	again = binary.BigEndian.AppendUint32(again, adler32.Checksum(pixels))
	writeChunk(&out, "IDAT", again)
	writeChunk(&out, "IEND", nil)
	return out.Bytes()
}

// pngChunks returns the chunks of a PNG file up to one that is cut off. Their checksums are not looked at.
func pngChunks(data []byte) []chunk {
	var out []chunk
	for rest := data[len(pngSignature):]; len(rest) >= 12; {
		n := uint64(binary.BigEndian.Uint32(rest))
		if n+12 > uint64(len(rest)) {
			break
		}
		out = append(out, chunk{string(rest[4:8]), rest[8 : 8+n]})
		rest = rest[12+n:]
	}
	return out
}

// decodeText reads a tEXt, zTXt, iTXt (PNG specification 11.3.3) or comf chunk, if compressed of at most most bytes.
func decodeText(kind string, body []byte, most int) (t textChunk, ok bool, err error) {
	key, rest, found := bytes.Cut(body, []byte{0})
	if !found || len(key) == 0 || len(key) > 79 {
		return t, false, nil
	}
	t.key = latin1(key)
	switch kind {
	case "tEXt", "comf": // the latter in animations of ComfyUI (SaveAnimatedPNG)
		if t.value = string(rest); !utf8.Valid(rest) {
			t.value = latin1(rest)
		}
	case "zTXt":
		if len(rest) < 1 || rest[0] != 0 {
			return t, false, nil
		}
		text, err := inflate(rest[1:], most)
		if err != nil {
			return t, false, err
		}
		t.value = latin1(text)
	case "iTXt":
		if len(rest) < 2 {
			return t, false, nil
		}
		compressed := rest[0] == 1
		_, rest, _ = bytes.Cut(rest[2:], []byte{0})
		_, text, found := bytes.Cut(rest, []byte{0})
		if !found {
			return t, false, nil
		}
		if compressed {
			if text, err = inflate(text, most); err != nil {
				return t, false, err
			}
		}
		if !utf8.Valid(text) {
			return t, false, nil
		}
		t.value = string(text)
	default:
		return t, false, nil
	}
	return t, true, nil
}

func inflate(data []byte, most int) ([]byte, error) {
	z, err := zlib.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("PNG text: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(z, int64(max(most, 0))+1))
	if err != nil {
		return nil, fmt.Errorf("PNG text: %w", err)
	}
	if len(text) > most {
		return nil, fmt.Errorf("PNG texts of more than %d MiB together", maxTexts>>20)
	}
	return text, nil
}

func latin1(b []byte) string {
	r := make([]rune, len(b))
	for i, c := range b {
		r[i] = rune(c)
	}
	return string(r)
}

// ExtraTexts renders extra_pnginfo as text chunks: "workflow" first, the others by name.
func ExtraTexts(extra map[string]any) (out [][2]string) {
	text := func(key string) {
		v := extra[key]
		if raw, ok := v.(json.RawMessage); ok {
			if decoded, err := pyjson.Decode(raw); err == nil {
				v = decoded
			}
		}
		out = append(out, [2]string{key, string(pyjson.Dump(v))})
	}
	const first = "workflow"
	if _, ok := extra[first]; ok {
		text(first)
	}
	for _, key := range slices.Sorted(maps.Keys(extra)) {
		if key != first {
			text(key)
		}
	}
	return out
}
