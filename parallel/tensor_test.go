package parallel

import (
	"context"
	"fmt"
	"testing"
)

// TestScatteredFormOnFewRows checks that ranks without rows of their own take part in every exchange. Twelve tokens on
// five sequence places and two tensor ranks leave places with two or three image tokens, and text of five tokens in
// the smaller entry. With three tensor ranks some keep none.
func TestScatteredFormOnFewRows(t *testing.T) {
	if testing.Short() {
		t.Skip("long: one rank with few rows after the other; TestExactPlansEqualOneRank has the scattered form")
	}
	e := newEngine(t)
	for _, f := range []string{"flux", "sd3", "hunyuandit"} {
		r := tinyRequest(t, f, 1, 6, 8, 1)
		want, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, plan := range []string{
			"ulysses=5,tensor=2,form=scatter", "ring=3,tensor=4,form=scatter",
			"ulysses=6,tensor=3,form=scatter",
		} {
			t.Run(fmt.Sprintf("%s/%s", f, plan), func(t *testing.T) {
				r := *r
				r.Plan = plan
				got, err := e.Sample(context.Background(), &r, nil)
				if err != nil {
					t.Fatal(err)
				}
				if rel := relative(got.Latent.Data, want.Latent.Data); rel > 1e-5 {
					t.Errorf("relative difference to one rank %.3g, bound 1e-5", rel)
				}
			})
		}
	}
}
