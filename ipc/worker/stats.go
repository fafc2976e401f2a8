package worker

import (
	"math"

	"patchbay/engine/profile"
	"patchbay/parallel/plan"
	"patchbay/parallel/request"
)

// maxSpans bounds the spans of a profile in one metrics event, so that it fits a message on every carrier.
const maxSpans = 4000

// statsOf returns the entry of one sampling run in a metrics event: plan, work, bytes that each rank sent by axis,
// tokens that each rank computed, and the profile if one was asked for. Spans are [rank, layer, operation, start us,
// duration us, bytes].
func statsOf(s request.Stats) map[string]any {
	out := map[string]any{
		"model": s.Model, "plan": s.Plan, "compute": s.Compute.String(), "evaluations": s.Evaluations, "latents": s.Rows,
		"load_seconds": s.LoadSeconds, "step_seconds": orEmpty(s.StepSeconds), "peak_bytes": s.PeakBytes,
	}
	if s.Resumed > 0 {
		out["resumed"] = s.Resumed
	}
	if len(s.Reused) > 0 {
		out["reused"] = s.Reused
	}
	if s.Synchronous != nil {
		out["synchronous"] = len(s.Synchronous)
	}
	if s.Chosen != nil {
		out["computed"] = s.Chosen
	}
	if len(s.Changes) > 0 {
		out["changes"] = changesOf(s.Changes)
	}
	ranks := []any{}
	for r, axes := range s.Traffic {
		rank := map[string]any{}
		for a, t := range axes {
			if t.Calls > 0 {
				rank[plan.Axis(a).String()] = map[string]any{"calls": t.Calls, "bytes": t.Bytes, "wait_seconds": t.Wait.Seconds()}
			}
		}
		if r < len(s.Tokens) {
			rank["text_tokens"], rank["image_tokens"], rank["micro_steps"] = s.Tokens[r].Text, s.Tokens[r].Image,
				s.Tokens[r].MicroSteps
		}
		if r < len(s.Devices) {
			rank["device"] = s.Devices[r]
		}
		ranks = append(ranks, rank)
	}
	out["ranks"] = ranks
	if len(s.Spans) == 0 {
		return out
	}
	table := []any{}
	for _, row := range profile.Table(s.Spans) {
		table = append(table, map[string]any{
			"rank": row.Rank, "layer": row.Layer, "calls": row.Calls,
			"seconds": row.Took.Seconds(), "bytes": row.Bytes,
		})
	}
	spans := []any{}
	for _, sp := range s.Spans[:min(len(s.Spans), maxSpans)] {
		spans = append(spans, []any{sp.Rank, sp.Layer, sp.Op, sp.Start.Microseconds(), sp.Took.Microseconds(), sp.Bytes})
	}
	out["profile"], out["spans"], out["spans_total"] = table, spans, len(s.Spans)
	return out
}

// changesOf lists what a verbose cache recorded for each evaluation; numbers that are unknown are left out.
func changesOf(changes []request.CacheChange) []any {
	out := []any{}
	for _, c := range changes {
		row := map[string]any{"evaluation": c.Evaluation, "reused": c.Reused}
		for name, v := range map[string]float32{
			"input": c.Input, "expected": c.Expected, "total": c.Total,
			"measured": c.Measured,
		} {
			if w := float64(v); !math.IsNaN(w) && !math.IsInf(w, 0) {
				row[name] = w
			}
		}
		out = append(out, row)
	}
	return out
}
