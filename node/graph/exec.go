package graph

import (
	"context"
	"time"

	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/pyjson"
	"patchbay/node/value"
)

// ExecRequest asks for one node of the catalogue to be run.
type ExecRequest struct {
	Class string
	// Inputs by name: literals, *array.Tensor, Handle (only its ID counts), and the forms that ExecResult documents,
	// as *pyjson.Object, map[string]any or []any.
	Inputs map[string]any
	Want   []int             // output slots to return, in this order; nil: all
	Files  map[string][]byte // files sent with the request, for LoadImage and LoadLatent
	Lease  time.Duration     // of handles in the result; 0: the runner's default
	Plan   string
}

// ExecResult is what one node returned. Outputs hold, by ComfyUI type: IMAGE *Tensor [B, Y, X, C], MASK *Tensor [B, Y,
// X], SIGMAS *Tensor [n+1], LATENT *Object {samples, noise_mask, batch_index}, CONDITIONING []any of []any{*Tensor,
// *Object} (with control nets a Handle), INT, FLOAT, STRING and BOOLEAN themselves, all others a Handle.
type ExecResult struct {
	Outputs  []any
	Files    []files.Output // what output nodes want saved
	Timings  Timings
	Warnings []string
}

// Exec runs one node. It waits for running jobs as Run does. Errors are *fault.Error with Class set, and with Field
// if an input is at fault.
func (r *Runner) Exec(ctx context.Context, req ExecRequest, emit func(Event)) (*ExecResult, error) {
	defer r.begin(1)()
	if emit == nil {
		emit = func(Event) {}
	}
	k := r.cat.classes[req.Class]
	if k == nil {
		return nil, &fault.Error{
			Code: fault.UnknownClass,
			Text: "no node class " + pyjson.Quote(req.Class) + " here; describe lists the classes", Class: req.Class,
		}
	}
	job := &Job{ID: "exec", Inputs: req.Files, Plan: req.Plan}
	x := &execution{run: r, job: job, ctx: ctx, emit: emit, began: time.Now(), result: &Result{}}
	in, err := r.execInputs(k, job, req.Inputs)
	var e *cached
	if err == nil {
		e, err = x.call("exec", k, in)
	}
	if err != nil {
		return nil, x.fail("", k, in, err)
	}
	out := &ExecResult{Files: e.files, Warnings: x.result.Warnings}
	want := req.Want
	if want == nil {
		for i := range e.outputs {
			want = append(want, i)
		}
	}
	for _, i := range want {
		if i < 0 || i >= len(e.outputs) {
			return nil, x.fail("", k, nil, fault.Bad("want", "%s has no output %d (it has %d)", k.Name, i, len(e.outputs)))
		}
		v, travels := value.Export(e.outputs[i])
		if !travels {
			v = r.Hold(e.outputs[i], req.Lease)
		}
		out.Outputs = append(out.Outputs, v)
	}
	x.result.Timings.Total = seconds(x.began)
	out.Timings = x.result.Timings
	return out, nil
}

// execInputs converts and checks the inputs of a single node like those of a workflow.
func (r *Runner) execInputs(k *Class, job *Job, given map[string]any) (map[string]any, error) {
	v := &validation{cat: r.cat, roots: &r.roots, job: job, lists: map[string][]any{}}
	in, literals := map[string]any{}, pyjson.NewObject()
	declared := k.declared(func(name string) (any, bool) { v, ok := given[name]; return v, ok })
	for name := range given {
		if find(declared, name) == nil {
			return nil, fault.Bad(name, "%s has no such input", k.Name)
		}
	}
	for i := range declared {
		decl := &declared[i]
		raw, ok := given[decl.Name]
		if !ok && decl.Later {
			raw, ok = decl.preset(), true
		}
		if !ok {
			if decl.Optional {
				continue
			}
			f := fault.At(fault.InputMissing, decl.Name, "%s", messageInputMissing)
			f.Details = decl.Name
			return nil, f
		}
		if h, ok := raw.(Handle); ok {
			held, ok := r.Value(h.ID)
			if !ok {
				return nil, fault.Named(fault.UnknownHandle, decl.Name, "no handle %q: it was freed or its lease ran out; "+
					"make it again", h.ID)
			}
			raw = held
		} else if decl.Type != typeBranch && !decl.drawn() {
			var err error
			if raw, err = value.ImportValue(decl.Type, decl.Name, raw); err != nil {
				return nil, err
			}
		}
		if value.IsWidget(decl.Type) || decl.Type == typeBranch || decl.drawn() {
			checked, p := v.literal(k, decl, raw)
			if p != nil {
				return nil, &fault.Error{Code: p.kind, Text: p.message, Details: p.details, Field: decl.Name}
			}
			raw = checked
			literals.Set(decl.Name, raw)
		} else if err := checkType(decl, raw); err != nil {
			return nil, err
		}
		in[decl.Name] = raw
	}
	if k.Check != nil {
		if field, text := k.Check(v.job, v.roots, literals); text != "" {
			return nil, &fault.Error{
				Code: fault.Custom, Text: messageCustomValidation,
				Details: field + " - " + text, Field: field,
			}
		}
	}
	return in, nil
}
