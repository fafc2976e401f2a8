package parallel

import (
	"context"
	"slices"
	"strings"
	"testing"
)

// TestSpansTellTheBytesOfEveryAxis checks that on every rank the exchanges in a profile carry as many bytes as the
// traffic counters of all axes together, gathers of weights during computation included (on folded stages both lanes
// have spans).
func TestSpansTellTheBytesOfEveryAxis(t *testing.T) {
	e := newEngine(t)
	r := flatRequest(t, "flux", 2)
	r.Profile = true
	for _, plan := range []string{
		"ulysses=2,shard=on", "cfg=2,ring=2,shard=on", "gather=2,shard=on", "tensor=2,form=scatter",
		"pipe=2,ring=2,patches=2,sync=spread",
	} {
		r.Plan = plan
		got, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		inSpans := make([]int64, len(got.Stats.Traffic))
		for _, s := range got.Stats.Spans {
			inSpans[s.Rank] += s.Bytes
		}
		for rank, axes := range got.Stats.Traffic {
			sent := int64(0)
			for _, a := range axes {
				sent += a.Bytes
			}
			if inSpans[rank] != sent || sent == 0 {
				t.Errorf("%s: rank %d: spans tell %d bytes, counters %d", plan, rank, inSpans[rank], sent)
			}
		}
	}
}

// TestGathersRunBesideAttention checks that a rank begins to gather keys and values, attends to its own, and waits for
// the others then. Without overlap it gathers all before the only attention.
func TestGathersRunBesideAttention(t *testing.T) {
	e := newEngine(t)
	r := flatRequest(t, "flux", 2)
	r.Profile = true
	for plan, want := range map[string]string{
		"gather=2":             "Begin AllGather, Attention, Fetched, Attention, MergeAttention",
		"gather=2,overlap=off": "AllGather, Attention",
		"gather=3":             "Begin AllGather, Attention, Fetched, Attention, MergeAttention, Attention, MergeAttention",
	} {
		r.Plan = plan
		got, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		var calls []string
		for _, s := range got.Stats.Spans {
			if s.Rank == 1 && (s.Layer == "exchange" || strings.HasSuffix(s.Op, "Attention")) {
				calls = append(calls, s.Op)
			}
		}
		// texts with weights attend in several calls
		calls = slices.Compact(calls)
		n := len(calls) / (1 + strings.Count(want, ","))
		if all := strings.Join(slices.Repeat([]string{want}, n), ", "); n == 0 || strings.Join(calls, ", ") != all {
			t.Errorf("%s: rank 1 calls %.20v, want %s again and again", plan, calls, want)
		}
	}
}
