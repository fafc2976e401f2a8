package profile

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Layers returns the layers of a table, in order; rows of other layers come last.
func Layers() []string {
	return []string{"text", "embed", "modulation", "qkv", "exchange", "attention", "mlp", "head", "vae", "other"}
}

// Row is one layer of one rank.
type Row struct {
	Rank  int           `json:"rank"`
	Layer string        `json:"layer"`
	Calls int           `json:"calls"`
	Took  time.Duration `json:"took_ns"`
	Bytes int64         `json:"bytes"`
}

// Table sums spans by rank and layer, ranks in order, layers in the order of Layers.
func Table(spans []Span) []Row {
	type key struct {
		rank  int
		layer string
	}
	at := map[key]int{}
	rows := []Row{}
	for _, s := range spans {
		k := key{s.Rank, s.Layer}
		i, seen := at[k]
		if !seen {
			i, at[k] = len(rows), len(rows)
			rows = append(rows, Row{Rank: s.Rank, Layer: s.Layer})
		}
		r := &rows[i]
		r.Calls, r.Took, r.Bytes = r.Calls+1, r.Took+s.Took, r.Bytes+s.Bytes
	}
	place := func(layer string) int {
		if i := slices.Index(Layers(), layer); i >= 0 {
			return i
		}
		return len(Layers())
	}
	slices.SortStableFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(place(a.Layer), place(b.Layer)))
	})
	return rows
}

// Write prints a table: milliseconds, share of the rank's time, calls, megabytes moved.
func Write(w io.Writer, rows []Row) error {
	total := map[int]time.Duration{}
	for _, r := range rows {
		total[r.Rank] += r.Took
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-5s %-11s %10s %7s %8s %10s\n", "rank", "layer", "ms", "share", "calls", "MB")
	for _, r := range rows {
		share := 0.0
		if t := total[r.Rank]; t > 0 {
			share = 100 * float64(r.Took) / float64(t)
		}
		fmt.Fprintf(&b, "%-5d %-11s %10.2f %6.1f%% %8d %10.2f\n", r.Rank, r.Layer, float64(r.Took)/1e6, share, r.Calls,
			float64(r.Bytes)/1e6)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Trace writes spans as a Chrome trace: one complete event ("ph": "X") per span, a process per rank, times in
// microseconds (Trace Event Format, section "Complete Events").
func Trace(w io.Writer, spans []Span) error {
	type event struct {
		Name  string         `json:"name"`
		Cat   string         `json:"cat"`
		Phase string         `json:"ph"`
		Start float64        `json:"ts"`
		Took  float64        `json:"dur"`
		Rank  int            `json:"pid"`
		Line  int            `json:"tid"`
		Args  map[string]any `json:"args,omitempty"`
	}
	events := make([]event, len(spans))
	for i, s := range spans {
		events[i] = event{
			Name: s.Op, Cat: s.Layer, Phase: "X", Start: float64(s.Start) / 1e3, Took: float64(s.Took) / 1e3, Rank: s.Rank,
		}
		if s.Bytes > 0 {
			events[i].Line, events[i].Args = 1, map[string]any{"bytes": s.Bytes}
		}
	}
	return json.NewEncoder(w).Encode(map[string]any{"traceEvents": events, "displayTimeUnit": "ms"})
}
