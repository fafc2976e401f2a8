package safetensors

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

// TestLongHeader checks that a header may name maxTensors tensors, more than any model has, and no more.
func TestLongHeader(t *testing.T) {
	file := func(n int) []byte {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"blocks.%d.weight":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`, i)
		}
		header := "{" + b.String()[1:] + "}"
		return append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
	}
	f, err := OpenBytes(file(maxTensors))
	if err != nil || len(f.Names()) != maxTensors {
		t.Errorf("%d tensors: %v", maxTensors, err)
	}
	_, err = OpenBytes(file(maxTensors + 1))
	if err == nil || !strings.Contains(err.Error(), "more than 100000 tensors") {
		t.Errorf("%d tensors: %v, want a refusal", maxTensors+1, err)
	}
}
