package forecast

import (
	"testing"

	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
)

// TestShapesSlowSmallWork checks the corrections of rates by shape on one rank: rows that are added to every product
// cost as much as so many rows more of each stream, of both in a block that has one matrix for both only once, and
// heads are as long as their padded form.
func TestShapesSlowSmallWork(t *testing.T) {
	time := func(model string, side int, shapes hardware.Shapes) RankTime {
		s := searchFor(t, model, side, 1, "H100")
		s.Text, s.Cluster.Device.Shapes = s.Text[:1], shapes
		return s.Simulate(plan.OneRank()).Ranks[0]
	}
	const rows = 300
	for model, of := range map[string]struct {
		tokens  int     // of a picture of 1024 px
		streams float64 // whose matrices a block has, as in the release's config
		padded  float64 // heads by 96
	}{
		"pixart-alpha": {4096, 1, 96. / 72}, "sd3-medium": {4096, 2, 96. / 64}, "z-image-turbo": {4096, 1, 192. / 128},
	} {
		plain, more := time(model, 1024, hardware.Shapes{}), time(model, 1024, hardware.Shapes{ProductRows: rows})
		large := time(model, 2048, hardware.Shapes{}) // 4 times the image tokens
		row := (large.Products - plain.Products) / float64(3*of.tokens)
		if got, want := more.Products-plain.Products, of.streams*rows*row; !near(got, want, 0.03*want) {
			t.Errorf("%s: %d rows more in every product take %.6f s, want %.6f", model, rows, got, want)
		}
		heads := time(model, 1024, hardware.Shapes{HeadStep: 96})
		if got := heads.Attention / plain.Attention; !near(got, of.padded, 1e-9) {
			t.Errorf("%s: padded heads take %.6f times as long, want %.6f", model, got, of.padded)
		}
		if more.Attention != plain.Attention || heads.Products != plain.Products {
			t.Errorf("%s: one correction changes what the other one is for", model)
		}
	}
}
