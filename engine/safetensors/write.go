package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Write writes a file with the given metadata (may be nil) and tensors. Of each entry it uses Name, FileType (or, when
// that is empty, DType), Shape and Data. The bytes depend on the contents only: metadata is sorted by key, tensors by
// dtype, widest first, then by name. That is the order of the reference implementation, and it aligns every tensor.
func Write(w io.Writer, metadata map[string]string, entries []Tensor) error {
	sorted := slices.Clone(entries)
	for i := range sorted {
		if err := complete(&sorted[i]); err != nil {
			return fmt.Errorf("write safetensors: %w", err)
		}
	}
	slices.SortFunc(sorted, func(a, b Tensor) int {
		_, placeA := lookup(a.FileType)
		_, placeB := lookup(b.FileType)
		return cmp.Or(cmp.Compare(placeB, placeA), strings.Compare(a.Name, b.Name))
	})
	header, err := buildHeader(metadata, sorted)
	if err != nil {
		return fmt.Errorf("write safetensors: %w", err)
	}
	if _, err := w.Write(header); err != nil {
		return fmt.Errorf("write safetensors: %w", err)
	}
	for _, e := range sorted {
		if _, err := w.Write(e.Data.Bytes()); err != nil {
			return fmt.Errorf("write safetensors: tensor %q: %w", e.Name, err)
		}
	}
	return nil
}

// complete fills in the file type and checks that the data has the size that the shape implies.
func complete(e *Tensor) error {
	if e.FileType == "" && e.DType != Other {
		for _, k := range kinds() { // U8 comes after BOOL and wins
			if k.dtype == e.DType {
				e.FileType = k.name
			}
		}
	}
	k, place := lookup(e.FileType)
	switch {
	case place < 0:
		return fmt.Errorf("tensor %q: dtype %s %q has no name in the format", e.Name, e.DType, e.FileType)
	case e.Name == "__metadata__":
		return fmt.Errorf("tensor name %q is reserved", e.Name)
	case slices.Min(append([]int{0}, e.Shape...)) < 0 || e.Data.Len()*8 != e.Len()*k.bits:
		return fmt.Errorf("tensor %q: shape %v of %s does not fit %d bytes", e.Name, e.Shape, e.FileType, e.Data.Len())
	}
	return nil
}

// buildHeader returns length field and JSON, padded with spaces to a multiple of 8 bytes.
func buildHeader(metadata map[string]string, entries []Tensor) ([]byte, error) {
	var b bytes.Buffer
	b.Write(make([]byte, 8))
	b.WriteByte('{')
	if len(metadata) > 0 {
		b.WriteString(`"__metadata__":{`)
		for i, key := range slices.Sorted(maps.Keys(metadata)) {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(quote(key) + ":" + quote(metadata[key]))
		}
		b.WriteByte('}')
	}
	seen, at := map[string]bool{}, 0
	for _, e := range entries {
		if seen[e.Name] {
			return nil, fmt.Errorf("tensor %q is given twice", e.Name)
		}
		seen[e.Name] = true
		if b.Len() > 9 {
			b.WriteByte(',')
		}
		shape := strings.ReplaceAll(strings.Trim(fmt.Sprint(e.Shape), "[]"), " ", ",")
		fmt.Fprintf(&b, `%s:{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}`, quote(e.Name), e.FileType, shape,
			at, at+e.Data.Len())
		at += e.Data.Len()
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	if b.Len()-8 > maxHeader {
		return nil, fmt.Errorf("header of %d bytes, at most %d are allowed", b.Len()-8, maxHeader)
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(b.Len()-8))
	return b.Bytes(), nil
}

// quote returns s as JSON without the escapes that are only for HTML, so that workflows in the metadata stay readable.
func quote(s string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string always encodes
	return strings.TrimSuffix(b.String(), "\n")
}
