package sampling

import (
	"testing"
)

func FuzzManualSigmas(f *testing.F) {
	for _, text := range []string{"1, 0.5", "14.6;9.1 -3 .5 0", "..5", "", "1e5", "-", "٣"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		sigmas, err := ManualSigmas(text)
		if err != nil && sigmas != nil {
			t.Errorf("%q: both %v and error %v", text, sigmas, err)
		}
		if len(sigmas) > len(text) {
			t.Errorf("%q: %d sigmas from %d bytes", text, len(sigmas), len(text))
		}
		for _, s := range sigmas {
			if s != s {
				t.Errorf("%q: not a number", text)
			}
		}
	})
}

func TestCutSteps(t *testing.T) {
	all := []float32{5, 4, 3, 2, 1, 0}
	for _, c := range []struct {
		start, last int
		force       bool
		want        []float32
	}{
		{-1, -1, false, all},
		{0, 10000, true, all},
		{2, -1, false, []float32{3, 2, 1, 0}},
		{0, 3, false, []float32{5, 4, 3, 2}},
		{1, 3, true, []float32{4, 3, 0}},
		{5, -1, false, nil},
		{3, 3, false, nil},
		{0, 0, false, nil},
	} {
		got := CutSteps(all, c.start, c.last, c.force)
		if d, _ := absolute(got, c.want); d != 0 {
			t.Errorf("start %d, last %d, force %v: got %v, want %v", c.start, c.last, c.force, got, c.want)
		}
	}
	if all[3] != 2 {
		t.Errorf("the list was changed: %v", all)
	}
}

func TestSplitsAreCopies(t *testing.T) {
	all := []float32{3, 2, 1, 0}
	high, low := SplitSigmas(all, 1)
	high[1], low[0] = 9, 8
	if all[1] != 2 {
		t.Errorf("the list was changed: %v", all)
	}
	if _, err := SetFirstSigma(nil, 1); err == nil {
		t.Error("first sigma of an empty list: no error")
	}
	if got := FlipSigmas(nil); len(got) != 0 {
		t.Errorf("flipped nothing: got %v", got)
	}
	if _, err := ExtendSigmas(all, 2, -1, 0, "cubic"); err == nil {
		t.Error("unknown spacing: no error")
	}
}
