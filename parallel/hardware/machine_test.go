package hardware

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestBadMachinesAreRefused checks that a profile with a missing, unknown or out-of-range field is refused with an
// error that names the field.
func TestBadMachinesAreRefused(t *testing.T) {
	m, err := NewMachine("cpu")
	if err != nil {
		t.Fatal(err)
	}
	good, err := m.JSON()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := ReadMachine(good); err != nil || !reflect.DeepEqual(again, m) {
		t.Fatalf("a profile reads back as %+v, %v; want %+v", again, err, m)
	}
	for _, c := range []struct{ from, to, want string }{
		{`"gemm": 220000000000`, `"gemm": 0`, "devices[0].gemm"},
		{`"attention": 155000000000`, `"attention": -1`, "devices[0].attention"},
		{`"traffic"`, `"trafficc"`, "trafficc"},
		{`"launch": 0.000001`, `"launch": 2`, "devices[0].launch"},
		{`"traffic"`, `"product_rows": -1, "traffic"`, "devices[0].product_rows"},
		{`"traffic"`, `"head_step": 1000, "traffic"`, "devices[0].head_step"},
		{`"name": "cpu"`, `"name": " "`, "devices[0].name"},
		{`"value_bytes": 4`, `"value_bytes": 3`, "devices[0].value_bytes"},
		{`"all_to_all": 1`, `"all_to_all": 7`, "links[0].all_to_all"},
		{`"bandwidth": 6000000000`, `"bandwidth": "fast"`, "bandwidth"},
		{`"devices"`, `"device"`, "devices"},
	} {
		bad := strings.Replace(string(good), c.from, c.to, 1)
		if bad == string(good) {
			t.Fatalf("the profile has no %s:\n%s", c.from, good)
		}
		if _, err := ReadMachine([]byte(bad)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error that names %s", c.to, err, c.want)
		}
	}
}

// TestMachinesOfSeveralKinds checks that they can be read back, and that a duplicate name, a bad device and an unknown
// kind are refused.
func TestMachinesOfSeveralKinds(t *testing.T) {
	m, err := NewMachine("H100")
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewMachine("L40")
	if err != nil {
		t.Fatal(err)
	}
	m.Others = []Device{other.Device}
	text, err := m.JSON()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ReadMachine(text)
	if err != nil || again.Device != m.Device || !slices.Equal(again.Others, m.Others) || again.Link != m.Link {
		t.Fatalf("%+v, %v: want %+v", again, err, m)
	}
	if d, err := again.Kind("l40"); err != nil || d != other.Device {
		t.Errorf("l40 is %+v, %v", d, err)
	}
	if _, err := again.Kind("L20"); err == nil || !strings.Contains(err.Error(), "H100, L40") {
		t.Errorf("L20: %v, want an error that lists what there is", err)
	}
	again.Pairs = []Pair{
		{A: "cuda:0", B: "cuda:1", Bandwidth: 1e9, Latency: 1e-5}, {A: "cuda:0", B: "cuda:2", Bandwidth: 2e9},
	}
	paired, err := again.JSON()
	if err != nil {
		t.Fatal(err)
	}
	if read, err := ReadMachine(paired); err != nil || !slices.Equal(read.Pairs, again.Pairs) {
		t.Errorf("pairs are read as %+v, %v", read.Pairs, err)
	}
	for from, to := range map[string]string{`"cuda:2"`: `""`, `"bandwidth": 2000000000`: `"bandwidth": 0`} {
		if _, err := ReadMachine([]byte(strings.Replace(string(paired), from, to, 1))); err == nil ||
			!strings.Contains(err.Error(), "pairs[1].") {
			t.Errorf("%s: got %v, want an error that names pairs[1]", to, err)
		}
	}
	for from, to := range map[string]string{`"L40"`: `"h100"`, `"gemm": 135000000000000`: `"gemm": 0`} {
		bad := strings.Replace(string(text), from, to, 1)
		if _, err := ReadMachine([]byte(bad)); err == nil || !strings.Contains(err.Error(), "devices[1].") {
			t.Errorf("%s: got %v, want an error that names devices[1]", to, err)
		}
	}
}
