package plan

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"patchbay/parallel/forecast"
)

// drawn returns a recorded simulation of a pipeline of three stages and equal micro-steps, straight or folded.
func drawn(t *testing.T, folded bool) timeline {
	t.Helper()
	b, err := os.ReadFile("testdata/timeline.json")
	if err != nil {
		t.Fatal(err)
	}
	var both [2]*forecast.Simulation
	if err := json.Unmarshal(b, &both); err != nil {
		t.Fatal(err)
	}
	if folded {
		return timeline{both[1]}
	}
	return timeline{both[0]}
}

// TestTimelineText compares the drawings with testdata/timeline.txt.
func TestTimelineText(t *testing.T) {
	straight, folded := drawn(t, false), drawn(t, true)
	got := "# three stages, four patches, warm-up 1, every micro-step one second\n" +
		straight.text(int(straight.Seconds)) +
		"\n# the same on folded stages: a micro-step comes back on the stages it went down on\n" +
		folded.text(int(folded.Seconds))
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
	d := xml.NewDecoder(strings.NewReader(s.svg()))
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
