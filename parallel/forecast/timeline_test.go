package forecast

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"patchbay/parallel/plan"
)

// drawn returns the simulation of a small pipeline of equal micro-steps.
func drawn(t *testing.T, folded bool) *Simulation {
	t.Helper()
	timing := plainTiming(3, 4, 3, 1, folded, 2)
	if folded {
		timing.work = func(_, _ int, m plan.Micro) float64 { return map[bool]float64{true: 4, false: 1}[m.Whole] }
	}
	p := newProgram(timing)
	ends, spans, err := p.net.run(false)
	if err != nil {
		t.Fatal(err)
	}
	s := &Simulation{Plan: plan.Plan{
		Data: 1, CFG: 1, Pipe: 3, Ring: 1, Ulysses: 1, Tensor: 1, Patches: 4, Warmup: 1,
		Overlap: true,
	}, Spans: spans}
	for _, e := range ends {
		s.Seconds = max(s.Seconds, e)
	}
	for _, a := range p.net.actors {
		s.Actors = append(s.Actors, a.name)
	}
	return s
}

// TestTimelineText compares the drawings with testdata/timeline.txt.
func TestTimelineText(t *testing.T) {
	straight, folded := drawn(t, false), drawn(t, true)
	got := "# three stages, four patches, warm-up 1, every micro-step one second\n" +
		straight.Text(int(straight.Seconds)) +
		"\n# the same on folded stages: a micro-step comes back on the stages it went down on\n" +
		folded.Text(int(folded.Seconds))
	want, err := os.ReadFile("testdata/timeline.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestTimelineSVG checks that the drawing is XML with one titled box for every span and no box outside the frame.
func TestTimelineSVG(t *testing.T) {
	s := drawn(t, true)
	d := xml.NewDecoder(strings.NewReader(s.SVG()))
	titles := 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "title" {
			titles++
		}
	}
	if titles != len(s.Spans) {
		t.Errorf("%d titled boxes, want one for each of %d spans", titles, len(s.Spans))
	}
}
