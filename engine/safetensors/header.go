package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"unicode/utf8"

	"patchbay/engine/datafile"
)

// The limits on hostile files. maxHeader is the reference implementation's.
const (
	maxHeader  = 100_000_000 // bytes of JSON
	maxDims    = 32
	maxPairs   = 1 << 20 // of __metadata__
	maxTensors = 100_000 // ten times what the largest released models have; every reader walks through all of them
)

// splitHeader separates the JSON text from the data behind it.
func splitHeader(file datafile.Span) (header []byte, body datafile.Span, err error) {
	refuse := func(format string, args ...any) ([]byte, datafile.Span, error) {
		return nil, datafile.Span{}, fmt.Errorf(format, args...)
	}
	if file.Len() < 8 {
		return refuse("not a safetensors file: %d bytes, the length field alone has 8 (%d missing)", file.Len(),
			8-file.Len())
	}
	n := binary.LittleEndian.Uint64(file.Slice(0, 8).Bytes())
	switch {
	case n > maxHeader:
		return refuse("not a safetensors file: header of %d bytes, at most %d are allowed", n, maxHeader)
	case n < 2:
		return refuse("not a safetensors file: header of %d bytes, at least 2 are needed", n)
	case n > uint64(file.Len()-8):
		return refuse("truncated file: header of %d bytes, %d bytes are missing", n, n-uint64(file.Len()-8))
	}
	header, body = file.Slice(8, 8+int(n)).Bytes(), file.Slice(8+int(n), file.Len())
	if header[0] != '{' {
		return refuse("not a safetensors file: header starts with %q, not with {", header[0])
	}
	if !utf8.Valid(header) {
		return refuse("header is not valid UTF-8")
	}
	return header, body, nil
}

// foreign says what a file is that people have in place of a model when a download went wrong, "" for anything else.
func foreign(file datafile.Span) string {
	start := bytes.ToLower(bytes.TrimLeft(file.Slice(0, min(file.Len(), 512)).Bytes(), "\xef\xbb\xbf \t\r\n"))
	begins := func(with ...string) bool {
		return slices.ContainsFunc(with, func(s string) bool { return bytes.HasPrefix(start, []byte(s)) })
	}
	switch {
	case begins("<!doctype html", "<html", "<head", "<?xml"):
		return "this is a web page, not a model: the server has answered the download with a page, often one that asks to " +
			"log in or to accept a licence"
	case begins("version https://git-lfs"):
		return "this is a git-lfs pointer, not a model: the file itself was not fetched (git lfs pull)"
	case begins("{", "error", "not found", "invalid "):
		return "this is a text, not a model: the server has answered the download with a message"
	case begins("pk\x03\x04", "\x80\x02"):
		return "this is a pickled file (.ckpt, .pt, .bin), not safetensors: it could run code and is never opened; get or " +
			"make the safetensors form"
	}
	return ""
}

// tensorInfo is the JSON of one tensor. Pointers distinguish absent from zero.
type tensorInfo struct {
	DType   *string  `json:"dtype"`
	Shape   *[]int64 `json:"shape"`
	Offsets *[]int64 `json:"data_offsets"`
}

// span is the byte range of one tensor within the data.
type span struct {
	name       string
	begin, end int64
}

// parseHeader reads the JSON and checks every range against the data.
func parseHeader(header []byte, body datafile.Span) (map[string]Tensor, map[string]string, error) {
	d := json.NewDecoder(bytes.NewReader(header))
	if _, err := d.Token(); err != nil { // the opening brace
		return nil, nil, fmt.Errorf("header JSON: %w", err)
	}
	entries, metadata := map[string]Tensor{}, map[string]string{}
	var spans []span
	seenMetadata := false
	for d.More() {
		tok, err := d.Token()
		if err != nil {
			return nil, nil, fmt.Errorf("header JSON at byte %d: %w", d.InputOffset(), err)
		}
		name, _ := tok.(string) // the decoder lets only strings pass as keys
		_, twice := entries[name]
		if twice || name == "__metadata__" && seenMetadata {
			return nil, nil, fmt.Errorf("tensor %q occurs twice in the header", name)
		}
		if len(entries) == maxTensors {
			return nil, nil, fmt.Errorf("the header names more than %d tensors", maxTensors)
		}
		if name == "__metadata__" {
			seenMetadata = true
			if metadata, err = readMetadata(d); err != nil {
				return nil, nil, fmt.Errorf("__metadata__ must map strings to strings: %w", err)
			}
			continue
		}
		var info tensorInfo
		if err := d.Decode(&info); err != nil {
			return nil, nil, fmt.Errorf("tensor %q: %w", name, err)
		}
		e, s, err := checkInfo(name, info)
		if err != nil {
			return nil, nil, fmt.Errorf("tensor %q: %w", name, err)
		}
		entries[name] = e
		spans = append(spans, s)
	}
	if err := finish(d); err != nil {
		return nil, nil, err
	}
	if err := checkSpans(spans, int64(body.Len())); err != nil {
		return nil, nil, err
	}
	for _, s := range spans {
		e := entries[s.name]
		e.Data = body.Slice(int(s.begin), int(s.end))
		entries[s.name] = e
	}
	return entries, metadata, nil
}

// readMetadata reads the value of __metadata__ pair by pair, so that its memory is bounded; null has no pairs.
func readMetadata(d *json.Decoder) (map[string]string, error) {
	out := map[string]string{}
	tok, err := d.Token()
	if err != nil || tok == nil {
		return out, err
	}
	if tok != json.Delim('{') {
		return nil, fmt.Errorf("it is %v", tok)
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		var value string
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		name, _ := key.(string) // the decoder lets only strings pass as keys
		if out[name] = value; len(out) > maxPairs {
			return nil, fmt.Errorf("more than %d pairs", maxPairs)
		}
	}
	_, err = d.Token() // the closing brace
	return out, err
}

// finish reads the closing brace and refuses anything but white space behind it.
func finish(d *json.Decoder) error {
	if _, err := d.Token(); err != nil {
		return fmt.Errorf("header JSON at byte %d: %w", d.InputOffset(), err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("header JSON: something follows the closing brace at byte %d", d.InputOffset())
	}
	return nil
}

// checkInfo checks one tensor by itself: fields present, dtype known, no overflow, range as long as the shape says.
func checkInfo(name string, info tensorInfo) (Tensor, span, error) {
	switch {
	case info.DType == nil:
		return Tensor{}, span{}, errors.New("dtype is missing")
	case info.Shape == nil:
		return Tensor{}, span{}, errors.New("shape is missing")
	case info.Offsets == nil || len(*info.Offsets) != 2:
		return Tensor{}, span{}, errors.New("data_offsets must be [begin, end]")
	case len(*info.Shape) > maxDims:
		return Tensor{}, span{}, fmt.Errorf("shape has %d dimensions, at most %d are allowed", len(*info.Shape), maxDims)
	}
	kind, place := lookup(*info.DType)
	if place < 0 {
		return Tensor{}, span{}, fmt.Errorf("unknown dtype %q", *info.DType)
	}
	begin, end := (*info.Offsets)[0], (*info.Offsets)[1]
	if begin < 0 || end < begin {
		return Tensor{}, span{}, fmt.Errorf("data_offsets [%d, %d] are not a range", begin, end)
	}
	shape := make([]int, len(*info.Shape))
	size := uint64(kind.bits)
	for i, s := range *info.Shape {
		if s < 0 || s > math.MaxInt {
			return Tensor{}, span{}, fmt.Errorf("shape %v has a dimension out of range", *info.Shape)
		}
		hi, lo := bits.Mul64(size, uint64(s))
		if hi != 0 || lo > math.MaxInt64 {
			return Tensor{}, span{}, fmt.Errorf("shape %v overflows", *info.Shape)
		}
		shape[i], size = int(s), lo
	}
	if size%8 != 0 || size/8 != uint64(end-begin) {
		return Tensor{}, span{}, fmt.Errorf("shape %v of %s needs %d bytes, data_offsets [%d, %d] hold %d", shape,
			*info.DType,
			(size+7)/8, begin, end, end-begin)
	}
	return Tensor{Name: name, DType: kind.dtype, FileType: *info.DType, Shape: shape}, span{name, begin, end}, nil
}

// checkSpans checks the ranges together: sorted by their begin they must follow each other without hole or overlap and
// end with the file.
func checkSpans(spans []span, size int64) error {
	slices.SortFunc(spans, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end))
	})
	at, last := int64(0), "the header"
	for _, s := range spans {
		if s.begin < at {
			return fmt.Errorf("tensor %q at byte %d overlaps %q, which ends at %d", s.name, s.begin, last, at)
		}
		if s.begin > at {
			return fmt.Errorf("hole of %d bytes between %s and tensor %q at byte %d", s.begin-at, last, s.name, s.begin)
		}
		at, last = s.end, s.name
	}
	if at > size {
		return fmt.Errorf("truncated file: the tensors need %d bytes of data, %d bytes are missing", at, at-size)
	}
	if at < size {
		return fmt.Errorf("%d bytes behind the last tensor belong to none", size-at)
	}
	return nil
}
