package message

import (
	"reflect"
	"testing"

	"patchbay/node/files"
)

// TestFilesComeBack checks that a file keeps all that a node has said of it on its way to the daemon.
func TestFilesComeBack(t *testing.T) {
	o := files.Output{
		Node: "9", Index: 2, Kind: "images", Prefix: "p", Type: "output", Ext: ".png", Bare: true, Data: []byte("x"),
		Width: 3, Height: 4,
	}
	v := reflect.ValueOf(o)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Fatalf("%s has no value", v.Type().Field(i).Name)
		}
	}
	if got := FileOf(o).Output(); !reflect.DeepEqual(got, o) {
		t.Errorf("%+v became %+v", o, got)
	}
}
