package picture

import (
	"bytes"
	"image/png"
	"slices"
	"testing"
)

// TestAnimatedPNG checks that an animation decodes to its frames, that its workflow is found, that the first frame is
// what readers of still pictures see, and that delays and levels are as given.
func TestAnimatedPNG(t *testing.T) {
	const n, y, x = 5, 7, 6
	for _, c := range []int{1, 3, 4} {
		frames := make([][]byte, n)
		for i := range frames {
			for k := range y * x * c {
				frames[i] = append(frames[i], byte(37*i+11*k+k*k))
			}
		}
		data := EncodeAPNG(n, y, x, c, 41, 9, func(i int) []byte { return frames[i] }, [2]string{"prompt", `{"1": {}}`})
		if prompt, _, err := WorkflowFrom(data); err != nil || string(prompt) != `{"1": {}}` {
			t.Errorf("the workflow is %q: %v", prompt, err)
		}
		im, _, err := Decode(data)
		if err != nil || im.B != n || im.Y != y || im.X != x {
			t.Fatalf("%d channels: %+v, %v; want %d frames", c, im, err, n)
		}
		for i := range n {
			var want []byte
			for k := range y * x {
				pixel := frames[i][k*c:][:c]
				if c == 1 {
					pixel = []byte{pixel[0], pixel[0], pixel[0]}
				}
				want = append(want, pixel[:3]...)
			}
			if got := im.Bytes(i); c != 4 && !slices.Equal(got, want) {
				t.Errorf("%d channels: frame %d is another", c, i)
			}
		}
		if still, err := png.Decode(bytes.NewReader(data)); err != nil || still.Bounds().Dx() != x {
			t.Errorf("as a still picture: %v", err)
		}
		if control := []byte{0, 41, 3, 232, 0, 0}; bytes.Count(data, control) != n {
			t.Errorf("%d frames of 41 / 1000 s, want %d", bytes.Count(data, control), n)
		}
	}
}
