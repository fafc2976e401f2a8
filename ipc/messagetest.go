package ipc

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"patchbay/ipc/wire"
	"patchbay/node"
	"patchbay/tests/hammer"
)

// graph makes a workflow {"1": {class_type, inputs {n}}, ...} from "Wait 20", "Picture 10".
func graph(nodes ...string) *node.Object {
	o := node.NewObject()
	for i, n := range nodes {
		class, num, _ := strings.Cut(n, " ")
		in := node.NewObject()
		if num != "" {
			var v int64
			if _, err := fmt.Sscan(num, &v); err != nil {
				panic(err)
			}
			in.Set("n", v)
		}
		o.Set(fmt.Sprint(i+1), node.NewObject("class_type", class, "inputs", in))
	}
	return o
}

// frameSeeds are requests in frames, one a verb at least, in both encodings.
func frameSeeds(tb testing.TB) []hammer.Input {
	tb.Helper()
	tensor := &wire.Tensor{DType: "f16", Shape: []int{2}, Data: []byte{0, 0x3c, 0, 0}}
	picture := map[string]*wire.Ref{wire.RefKey: {Kind: wire.RefShm, Bytes: 4, FD: 1, Offset: 8}}
	var out []hammer.Input
	for verb, body := range map[string]any{
		VerbRun:      &RunRequest{ID: "j", Workflow: graph("Wait 1"), Inputs: map[string][]byte{"a.png": []byte("abc")}, Priority: "high", QueueTTLMS: 5},
		VerbSubmit:   map[string]any{"workflow": graph("Picture 3"), "inputs": map[string]any{"a.png": picture}},
		VerbStatus:   jobRequest{Job: "j", Follow: true, From: 3, Outputs: true},
		VerbJobs:     jobsRequest{State: "done", Limit: 7},
		VerbCancel:   jobRequest{Job: "j"},
		VerbDescribe: describeRequest{Class: "KSampler", Schema: true},
		VerbExec:     &ExecRequest{Class: "Echo", Inputs: node.NewObject("a", tensor, "b", node.NewObject(handleKey, "h"), "c", []any{1, picture}), Want: []int{0}, LeaseMS: 5},
		VerbSample:   aSample(),
		VerbLoad:     &LoadRequest{Model: ModelRef{File: "m"}, Plan: "ulysses=2"},
		VerbFree:     &FreeRequest{Handles: []string{"h"}, Models: []string{"m"}},
	} {
		for _, enc := range []wire.Encoding{wire.Msgpack, wire.JSON} {
			b, err := wire.Encode(body, enc)
			if err != nil {
				tb.Fatal(err)
			}
			parts, err := wire.Splice(wire.Envelope{Op: verb, Tag: 1, Accept: []string{wire.RefShm}}, b, enc)
			if err != nil {
				tb.Fatal(err)
			}
			out = append(out, hammer.Input{Data: bytes.Join(parts, nil)})
		}
	}
	slices.SortFunc(out, func(a, b hammer.Input) int { return bytes.Compare(a.Data, b.Data) }) // maps have no order, runs have
	return out
}

// aSample is the smallest body of sample, with one of everything.
func aSample() *SampleRequest {
	f32 := func(shape ...int) *wire.Tensor {
		t := &wire.Tensor{DType: "f32", Shape: shape}
		t.Data = make([]byte, t.Bytes())
		return t
	}
	half, one := 0.5, 1.0
	return &SampleRequest{
		ID: "s", Model: ModelRef{File: "m", Patches: []PatchRef{{Key: "k", Offset: []int{0, 1, 2}, Adapter: "lora", Strength: &half, Tensors: PatchTensors{Up: f32(2, 1), Down: f32(1, 2), Alpha: &one}}}},
		Sampler: SamplerRef{Name: "euler", Options: map[string]any{"eta": 1.0}}, Sampling: &SamplingRef{Bases: []string{"CONST"}, Shift: &one},
		Sigmas: f32(2), Noise: f32(1, 1, 2, 2), Latent: f32(1, 1, 2, 2), Mask: f32(1, 1, 2, 2), CFG: &one, NoiseDraws: []int{4},
		Conds: CondsRef{Positive: []CondRef{{
			ModelConds:    map[string]*wire.Tensor{"c_crossattn": f32(1, 1, 2), "y": f32(1, 2), "guidance": f32(1), "attention_mask": {DType: "u8", Shape: []int{1, 2}, Data: []byte{1, 0}}},
			TimestepStart: &one, Area: []int{1, 1, 0, 0}, Mask: f32(1, 2, 2),
		}}, Negative: &[]CondRef{}},
	}
}

// fakePicture is an output of n bytes.
func fakePicture(id string, n int) node.Output {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i * 7)
	}
	return node.Output{Node: id, Kind: "images", Type: "output", Prefix: "fake", Ext: ".png", Data: data, Width: 1, Height: 1}
}
