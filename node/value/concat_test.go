package value

import (
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/node/picture"
	"patchbay/parallel/request"
)

// TestConcatenatedChannelsAreRefusedByName checks the errors for channels concatenated to the noise that do not fit it:
// those of a conditioning, and those that a client passes as c_concat.
func TestConcatenatedChannelsAreRefusedByName(t *testing.T) {
	fill, plain := tinyModel(t, "fill-a"), tinyModel(t, "kontext-a")
	l := request.NewLatent(1, 16, 4, 6)
	for want, c := range map[string]Cond{
		"2 pictures of 16 channels": {ConcatImage: request.NewLatent(2, 16, 4, 6)},
		"1 pictures of 4 channels":  {ConcatImage: request.NewLatent(1, 4, 4, 6)},
		"batch of 2":                {ConcatMask: &picture.Mask{B: 2, Y: 1, X: 1, Data: []float32{1, 1}}},
	} {
		if _, err := fill.concat(&c, "positive", l, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error that says %q", err, want)
		}
		if got, err := plain.concat(&c, "positive", l, nil); err != nil || got.Data != nil {
			t.Errorf("a network that reads nothing there was given %d values, %v", len(got.Data), err)
		}
	}
	context := dit.Array{Rows: 1, Cols: 40, Data: make([]float32, 40)}
	for _, c := range []struct {
		m    *Model
		data dit.Reference
		want string
	}{
		{fill, dit.Reference{}, "reads 80 channels of the latent's 4 x 6"},
		{fill, dit.Reference{Y: 6, X: 4, Data: make([]float32, 80*24)}, "for 6 x 4"},
		{plain, dit.Reference{Y: 4, X: 6, Data: make([]float32, 16*24)}, "takes no c_concat"},
	} {
		e := request.Entry{Entry: dit.Entry{Context: context, Concat: c.data}}
		err := c.m.fitsHost(&request.Request{
			Latent: l, Branches: []request.Branch{{Name: "positive", Entries: []request.Entry{e}}},
		})
		if f := fault.From(err); f == nil || f.Field != "conds.positive.c_concat" || !strings.Contains(f.Text, c.want) {
			t.Errorf("got %v, want a failure at c_concat that says %q", err, c.want)
		}
	}
}
