package torchfile

import (
	"archive/zip"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
)

func values(e Tensor) []float32 {
	v := make([]float32, e.Data.Len()/e.DType.Size())
	engine.Widen(v, e.Data.Bytes(), e.DType)
	return v
}

// TestFilesOfTorch reads files of torch 2.15: a training checkpoint with tensors of all types, one of them part of a
// larger storage, and a parameter; and the state of a module with its version metadata.
func TestFilesOfTorch(t *testing.T) {
	for file, want := range map[string]map[string][]float32{
		"training.pth": {
			"f32": {0, 0.25, 0.5, 0.75, 1, 1.25}, "f16": {0.5, -2}, "bf16": {1.5}, "scalar": {7}, "parameter": {3, 4},
			"view": {8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19},
		},
		"module.pth": {"0.weight": {1, 2}, "0.bias": {3}},
	} {
		f, err := Open(filepath.Join("testdata", file))
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if len(f.Names()) != len(want) || len(f.HeaderHash()) != 64 {
			t.Errorf("%s: %d tensors, want %d (whole numbers left out)", file, len(f.Names()), len(want))
		}
		for name, v := range want {
			if e, _ := f.Entry(name); !slices.Equal(values(e), v) {
				t.Errorf("%s: %s is %v, want %v", file, name, values(e), v)
			}
		}
		if view, _ := f.Entry("view"); file == "training.pth" && !slices.Equal(view.Shape, []int{3, 4}) {
			t.Errorf("view has shape %v", view.Shape)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// archive returns a file with the given pickle and a storage of 24 bytes.
func archive(t testing.TB, pickle string, method uint16) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, data := range map[string]string{"x/data.pkl": pickle, "x/data/0": strings.Repeat("\x00", 24)} {
		w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: method})
		if err == nil {
			_, err = w.Write([]byte(data))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// tensorOf returns a pickle of one tensor named a, with the key of its storage and its offset, rows and stride.
func tensorOf(key string, offset, rows, stride byte) string {
	return "\x80\x02}X\x01\x00\x00\x00actorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storage" +
		"ctorch\nFloatStorage\n" +
		"X\x01\x00\x00\x00" + key + "X\x03\x00\x00\x00cpuK\x06tQK" + string([]byte{offset}) + "K" + string([]byte{rows}) +
		"\x85K" + string([]byte{stride}) + "\x85\x89ccollections\nOrderedDict\n)RtRs."
}

// TestNumbers checks that integers of one or two bytes are unsigned, those of four bytes and of the long form signed.
func TestNumbers(t *testing.T) {
	for in, want := range map[string]int64{
		"K\xff.": 255, "M\xff\xff.": 65535, "J\xff\xff\xff\xff.": -1, "\x8a\x00.": 0, "\x8a\x01\xff.": -1,
		"\x8a\x02\xff\x00.": 255, "\x8a\x03\x00\x00\x80.": -1 << 23, "\x8a\x04\xfe\xff\xff\xff.": -2,
		"\x8a\x07\x00\x00\x00\x00\x00\x00\xff.": -1 << 48, "\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80.": -1 << 63,
	} {
		m := &machine{in: []byte(in)}
		if got, err := m.run(); got != any(want) || err != nil {
			t.Errorf("%q: got %v, %v, want %d", in, got, err, want)
		}
	}
}

// TestFilesThatAreRefused checks that anything but a dictionary of tensors is an error that says what was found, and
// that no code of the pickle runs.
func TestFilesThatAreRefused(t *testing.T) {
	if _, err := OpenBytes(archive(t, tensorOf("0", 0, 6, 1), zip.Store)); err != nil {
		t.Fatal(err) // the valid file that the others are variants of
	}
	for name, text := range map[string]string{
		"turned.pth": "want them one behind the other", "old.pth": "not a file of torch.save since torch 1.6",
		"class.pth": `names "__builtin__.complex", which is not part of a dictionary of tensors`,
	} {
		if _, err := Open(filepath.Join("testdata", name)); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: got %v, want %q", name, err, text)
		}
	}
	whole := archive(t, tensorOf("0", 0, 6, 1), zip.Store)
	for text, file := range map[string][]byte{
		`names "posix.system"`:     archive(t, "\x80\x02cposix\nsystem\nX\x02\x00\x00\x00id\x85R.", zip.Store),
		`names "builtins.eval"`:    archive(t, "\x80\x02cbuiltins\neval\nX\x03\x00\x00\x00a()\x85R.", zip.Store),
		"opcode 0x69":              archive(t, "\x80\x02(iposix\nsystem\n.", zip.Store),
		"opcode 0x93":              archive(t, "\x80\x02X\x05\x00\x00\x00posixX\x06\x00\x00\x00system\x93.", zip.Store),
		"opcode 0x81":              archive(t, "\x80\x02ccollections\nOrderedDict\n)\x81.", zip.Store),
		"opcode 0x82":              archive(t, "\x80\x02\x82\x01.", zip.Store),
		"protocol 4":               archive(t, "\x80\x04}.", zip.Store),
		"a call that makes no":     archive(t, "\x80\x02ctorch\nFloatStorage\n)R.", zip.Store),
		"the stack is empty":       archive(t, "\x80\x02.", zip.Store),
		"nothing is kept at 7":     archive(t, "\x80\x02h\x07.", zip.Store),
		"a text of 4294967295":     archive(t, "\x80\x02X\xff\xff\xff\xff.", zip.Store),
		"ends early":               archive(t, "\x80\x02}", zip.Store),
		"holds no dictionary of":   archive(t, "\x80\x02}.", zip.Store),
		"data.pkl holds no":        archive(t, "\x80\x02K\x01.", zip.Store),
		"data/9 is missing":        archive(t, tensorOf("9", 0, 6, 1), zip.Store),
		"elements 1 to 7 lie":      archive(t, tensorOf("0", 1, 6, 1), zip.Store),
		"elements 200 to 206":      archive(t, tensorOf("0", 200, 6, 1), zip.Store),
		"shape [200] does not fit": archive(t, tensorOf("0", 0, 200, 1), zip.Store),
		"lie [2] apart":            archive(t, tensorOf("0", 0, 3, 2), zip.Store),
		"is compressed":            archive(t, tensorOf("0", 0, 6, 1), zip.Deflate),
		"not a file of torch.save": whole[:len(whole)/2],
		"data.pkl is missing":      bytes.ReplaceAll(whole, []byte("data.pkl"), []byte("date.pkl")),
	} {
		if _, err := OpenBytes(file); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want %q", err, text)
		}
	}
	// A dictionary that contains itself must not make the reader loop.
	if _, err := OpenBytes(archive(t, "\x80\x02}q\x00X\x05\x00\x00\x00modelh\x00s.", zip.Store)); err == nil {
		t.Error("a dictionary of itself is taken")
	}
}

// FuzzOpenBytes checks that no pickle and no file makes the reader panic, hang or allocate far more than the file's
// length, and that accepted tensors have the size that their shapes imply.
func FuzzOpenBytes(f *testing.F) {
	for _, name := range []string{"training", "module", "turned", "class"} {
		data, err := os.ReadFile(filepath.Join("testdata", name+".pth"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, false)
	}
	f.Add([]byte(tensorOf("0", 0, 6, 1)), true)
	f.Fuzz(func(t *testing.T, data []byte, bare bool) {
		if bare {
			data = archive(t, string(data), zip.Store)
		}
		file, err := OpenBytes(data)
		if err != nil {
			if len(err.Error()) > 4000 {
				t.Fatalf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		for _, name := range file.Names() {
			e, _ := file.Entry(name)
			n := e.DType.Size()
			for _, d := range e.Shape {
				n *= d
			}
			if n != e.Data.Len() {
				t.Fatalf("%q: %d bytes for shape %v of %s", name, e.Data.Len(), e.Shape, e.DType)
			}
		}
	})
}
