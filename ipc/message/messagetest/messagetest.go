// Package messagetest makes the requests that tests of several packages send.
package messagetest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"patchbay/array"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/files"
	"patchbay/node/pyjson"
	"patchbay/tests/hammer"
)

// Graph returns a workflow {"1": {class_type, inputs {n}}, ...} for nodes such as "Wait 20" and "Picture 10".
func Graph(nodes ...string) *pyjson.Object {
	o := pyjson.NewObject()
	for i, n := range nodes {
		class, num, _ := strings.Cut(n, " ")
		in := pyjson.NewObject()
		if num != "" {
			var v int64
			if _, err := fmt.Sscan(num, &v); err != nil {
				panic(err)
			}
			in.Set("n", v)
		}
		o.Set(fmt.Sprint(i+1), pyjson.NewObject("class_type", class, "inputs", in))
	}
	return o
}

// Frames returns frame bodies with requests, one for every verb that has a body of its own, in both encodings.
func Frames(tb testing.TB) []hammer.Input {
	tb.Helper()
	tensor := &wire.Tensor{Tensor: array.Tensor{DType: "f16", Shape: []int{2}, Data: []byte{0, 0x3c, 0, 0}}}
	picture := map[string]*wire.Ref{wire.RefKey: {Kind: wire.RefShm, Bytes: 4, FD: 1, Offset: 8}}
	var out []hammer.Input
	for verb, body := range map[string]any{
		message.VerbRun: &message.RunRequest{
			ID: "j", Workflow: Graph("Wait 1"),
			Inputs: map[string][]byte{"a.png": []byte("abc")}, Priority: "high", QueueTTLMS: 5,
		},
		message.VerbSubmit:   map[string]any{"workflow": Graph("Picture 3"), "inputs": map[string]any{"a.png": picture}},
		message.VerbStatus:   message.JobRequest{Job: "j", Follow: true, From: 3, Outputs: true},
		message.VerbJobs:     message.JobsRequest{State: "done", Limit: 7},
		message.VerbCancel:   message.JobRequest{Job: "j"},
		message.VerbDescribe: message.DescribeRequest{Class: "KSampler", Schema: true},
		message.VerbExec: &message.ExecRequest{
			Class:  "Echo",
			Inputs: pyjson.NewObject("a", tensor, "b", pyjson.NewObject(message.HandleKey, "h"), "c", []any{1, picture}),
			Want:   []int{0}, LeaseMS: 5,
		},
		message.VerbSample: Sample(),
		message.VerbLoad:   &message.LoadRequest{Model: message.ModelRef{File: "m"}, Plan: "ulysses=2"},
		message.VerbFree:   &message.FreeRequest{Handles: []string{"h"}, Models: []string{"m"}},
	} {
		for _, enc := range []wire.Encoding{wire.Msgpack, wire.JSON} {
			b, err := wire.Encode(body, enc)
			if err != nil {
				tb.Fatal(err)
			}
			parts, err := wire.Splice(wire.Envelope{Op: verb, Tag: 1, Accept: []string{wire.RefShm}}, [][]byte{b}, enc)
			if err != nil {
				tb.Fatal(err)
			}
			out = append(out, hammer.Input{Data: bytes.Join(parts, nil)})
		}
	}
	// sorted, because the order of maps is random and test runs must repeat
	slices.SortFunc(out, func(a, b hammer.Input) int { return bytes.Compare(a.Data, b.Data) })
	return out
}

// Sample returns a small body of sample that has nearly every field.
func Sample() *message.SampleRequest {
	f32 := func(shape ...int) *wire.Tensor {
		t := &wire.Tensor{Tensor: array.Tensor{DType: "f32", Shape: shape}}
		t.Data = make([]byte, t.Bytes())
		return t
	}
	half, one := 0.5, 1.0
	return &message.SampleRequest{
		ID: "s", Model: message.ModelRef{
			File: "m",
			Patches: []message.PatchRef{{
				Key: "k", Offset: []int{0, 1, 2}, Adapter: "lora", Strength: &half,
				Tensors: message.PatchTensors{Up: f32(2, 1), Down: f32(1, 2), Alpha: &one},
			}},
			Nets: []message.NetRef{{File: "n", Fingerprint: "a", Strength: &half, Hint: f32(1, 1, 2, 2)}},
		},
		Sampler:  message.SamplerRef{Name: "euler", Options: map[string]any{"eta": 1.0}},
		Sampling: &message.SamplingRef{Bases: []string{"CONST"}, Shift: &one},
		Sigmas:   f32(2), Noise: f32(1, 1, 2, 2), Latent: f32(1, 1, 2, 2), Mask: f32(1, 1, 2, 2), CFG: &one,
		NoiseDraws: []int{4},
		Conds: message.CondsRef{Positive: []message.CondRef{{
			ModelConds: map[string]*wire.Tensor{
				"c_crossattn": f32(1, 2, 2), "y": f32(1, 2), "guidance": f32(1),
				"attention_mask": {Tensor: array.Tensor{DType: "u8", Shape: []int{1, 2}, Data: []byte{1, 0}}},
			},
			TimestepStart: &one, Area: []int{1, 1, 0, 0}, Mask: f32(1, 2, 2),
		}}, Negative: &[]message.CondRef{}},
	}
}

// Picture returns an output file of n bytes.
func Picture(id string, n int) files.Output {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i * 7)
	}
	return files.Output{
		Node: id, Kind: "images", Type: "output", Prefix: "fake", Ext: ".png", Data: data,
		Width: 1, Height: 1,
	}
}
