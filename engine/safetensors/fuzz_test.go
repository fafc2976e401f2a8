package safetensors

import (
	"bytes"
	"testing"
)

// FuzzOpenBytes checks that no file makes the reader panic, that accepted entries lie inside the file and have the size
// that their shape implies, and that an accepted file can be written and read again.
func FuzzOpenBytes(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(file(`{}`))
	f.Add(file(`{"__metadata__":{"a":"b"},"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 1, 2, 3, 4))
	f.Add(file(`{"t":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]},`+
		`"u":{"dtype":"F8_E5M2","shape":[],"data_offsets":[4,5]}}`, 1, 2, 3, 4, 5))
	f.Add(file(`{"t":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}}`, 1, 2))
	f.Add(file(`{"t":{"dtype":"U8","shape":[0,9223372036854775807],"data_offsets":[0,0]}}`))
	f.Add(file(`{"t":{"dtype":"U8","shape":[9223372036854775807,2,0],"data_offsets":[0,0]}}`))
	f.Add(file(`{"t":null,"u":[],"v":{"dtype":1}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		st, err := OpenBytes(data)
		if err != nil {
			return
		}
		total := 0
		var entries []Tensor
		for _, name := range st.Names() {
			e, ok := st.Entry(name)
			kind, _ := lookup(e.FileType)
			if !ok || e.Len()*kind.bits != 8*e.Data.Len() {
				t.Fatalf("entry %q: shape %v of %s with %d bytes", name, e.Shape, e.FileType, e.Data.Len())
			}
			total += e.Data.Len()
			if v, err := e.F32(); err == nil && len(v) != e.Len() {
				t.Fatalf("entry %q: %d values for shape %v", name, len(v), e.Shape)
			}
			entries = append(entries, e)
		}
		if total > len(data) {
			t.Fatalf("entries hold %d bytes, the file has %d", total, len(data))
		}
		var out bytes.Buffer
		if err := Write(&out, st.Metadata(), entries); err != nil {
			t.Fatalf("write of an accepted file: %v", err)
		}
		if _, err := OpenBytes(out.Bytes()); err != nil {
			t.Fatalf("read of a written file: %v", err)
		}
	})
}
