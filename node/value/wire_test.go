package value

import (
	"reflect"
	"testing"

	"patchbay/models/dit"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
)

// rows is an array of 0, 0.5, 1 ...
func rows(n, cols int) dit.Array {
	a := dit.Array{Rows: n, Cols: cols, Data: make([]float32, n*cols)}
	for i := range a.Data {
		a.Data[i] = float32(i) / 2
	}
	return a
}

func exported(t *testing.T, v any) any {
	t.Helper()
	out, travels := Export(v)
	if !travels {
		t.Fatalf("%T does not travel", v)
	}
	return out
}

func TestValuesTravel(t *testing.T) {
	g := float32(2.5)
	list := Conditioning{
		{
			Context: rows(2, 3), Pooled: []float32{1, 2}, Guidance: &g, Start: 0.25, End: 0.5, Ranged: true, Strength: 0.5,
			HasStrength: true, MaskStrength: 1,
		},
		{
			Context: rows(1, 3), NoGuidance: true, AreaPart: &[4]float64{0.5, 0.25, 0, 1},
			Mask: &picture.Mask{B: 1, Y: 2, X: 2, Data: []float32{0, 1, 1, 0}}, MaskStrength: 0.75, MaskBounds: true,
			ContextLen: 1, Context2: rows(2, 2), Context2Len: 2,
		},
	}
	back, err := importConditioning(exported(t, list))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(back, list) {
		t.Errorf("conditioning came back as\n%+v\nwant\n%+v", back, list)
	}
	l := &Latent{NoiseMask: &picture.Mask{B: 1, Y: 2, X: 2, Data: []float32{0, 1, 1, 0}}, BatchIndex: []int{3, 1}}
	l.Samples.B, l.Samples.C, l.Samples.Y, l.Samples.X, l.Samples.Data = 2, 1, 1, 2, []float32{1, 2, 3, 4}
	if got, err := importLatent(exported(t, l)); err != nil || !reflect.DeepEqual(got, l) {
		t.Errorf("latent came back as %+v, %v", got, err)
	}
	if _, err := importConditioning([]any{[]any{
		NewTensor([]float32{1}, 1, 1, 1),
		pyjson.NewObject("hooks", 1),
	}}); err == nil {
		t.Error("a key that is not known was taken")
	}
}
