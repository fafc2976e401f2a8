package jobs

import (
	"cmp"
	"fmt"
	"maps"

	"patchbay/fault"
	"patchbay/ipc/message"
)

// EndOf is the state in which a run leaves its job.
func EndOf(failure *fault.Error) message.State {
	switch {
	case failure == nil:
		return message.Done
	case failure.Public() == fault.Cancelled:
		return message.Cancelled
	}
	return message.Failed
}

// Cancelled returns the error of a job that was cancelled.
func Cancelled() *fault.Error { return fault.New(fault.Cancelled, "the job was cancelled") }

// LastEvents returns the events with which a job ends: executed with the names of its files, metrics, executing without
// a node, and the terminal one. ui is that of its Outcome.
func LastEvents(rec message.Record, ui map[string]map[string]any) []message.Event {
	return append(executedEvents(rec.Job, rec.Outputs, ui), endOf(rec)...)
}

// endOf makes the end of the log of a job from its record: metrics, executing without a node, by which ComfyUI says
// that no node is running any more, and the terminal event. Their numbers end with rec.EndSeq.
func endOf(rec message.Record) []message.Event {
	var out []message.Event
	if rec.Metrics != nil {
		out = append(out, message.Event{Type: message.EventMetrics, Data: rec.Metrics})
	}
	if rec.Kind == "" && rec.Started > 0 {
		data := map[string]any{"node": nil, "prompt_id": rec.Job}
		out = append(out, message.Event{Type: message.EventExecuting, Data: data})
	}
	out = append(out, terminalOf(rec))
	for i := range out {
		ev := &out[i]
		ev.V, ev.Job, ev.TS, ev.Attempt = message.ProtocolVersion, rec.Job, rec.Finished, rec.Attempt
		ev.Seq = max(rec.EndSeq, uint64(len(out))) - uint64(len(out)-1-i)
	}
	return out
}

// terminalOf makes the terminal event of a job from its record.
func terminalOf(rec message.Record) message.Event {
	data := map[string]any{"prompt_id": rec.Job, "timestamp": rec.Finished}
	switch rec.State {
	case message.Done:
		data["outputs"] = rec.Outputs
		for name, text := range map[string]string{"reused": rec.Reused, "warning": rec.Warning} {
			if text != "" {
				data[name] = text
			}
		}
		return message.Event{Type: message.EventSuccess, Data: data}
	case message.Expired:
		return message.Event{Type: message.EventExpired, Error: rec.Error, Data: data}
	}
	failure := rec.Error
	if failure == nil {
		failure = fault.New(fault.Internal, "the job is %s", rec.State)
	}
	if len(rec.Outputs) > 0 && rec.Dropped == 0 {
		data["outputs"] = rec.Outputs
	}
	kind := message.EventError
	if rec.State == message.Cancelled {
		kind = message.EventInterrupted
	}
	return message.Event{Type: kind, Error: failure, NodeErrors: rec.NodeError, Data: endData(failure, data)}
}

// executedEvents returns ComfyUI's executed events, one per node that made files, in the order of the files.
func executedEvents(job string, refs []message.OutputRef, ui map[string]map[string]any) []message.Event {
	var order []string
	files := map[string]map[string]any{}
	for _, r := range refs {
		if files[r.Node] == nil {
			order = append(order, r.Node)
			files[r.Node] = map[string]any{}
			maps.Copy(files[r.Node], ui[r.Node])
			files[r.Node][r.Kind] = []any{}
		}
		list, _ := files[r.Node][r.Kind].([]any)
		files[r.Node][r.Kind] = append(list, map[string]any{"filename": r.Filename, "subfolder": r.Subfolder, "type": r.Type})
	}
	var out []message.Event
	for _, n := range order {
		out = append(out, message.Event{Type: message.EventExecuted, Node: n, Data: map[string]any{
			"node": n, "display_node": n, "output": files[n], "prompt_id": job,
		}})
	}
	return out
}

// endData fills in what ComfyUI's execution_error and execution_interrupted carry.
func endData(e *fault.Error, data map[string]any) map[string]any {
	data["node_id"], data["node_type"], data["executed"] = e.Node, e.Class, []string{}
	if ran, ok := e.Extra["executed"]; ok {
		data["executed"] = ran
	}
	if e.Public() != fault.Cancelled {
		data["current_inputs"], data["current_outputs"] = map[string]any{}, []string{}
		for _, name := range []string{"current_inputs", "current_outputs"} {
			if v, ok := e.Extra[name]; ok {
				data[name] = v
			}
		}
		text := e.Text
		if e.Details != "" {
			text = fmt.Sprintf("%s: %s", text, e.Details)
		}
		f := e.Form()
		data["exception_message"], data["exception_type"] = text, cmp.Or(f.Type, f.Code)
		data["traceback"] = append([]string{}, f.Trace...)
	}
	return data
}
