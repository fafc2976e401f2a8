package qwenimage21

import (
	"reflect"
	"strings"
	"testing"

	"patchbay/models/family"
	"patchbay/models/lora/loratest"
	"patchbay/models/weights"
)

// TestReleasedSize counts the parameters of the release by hand: E=4096, F=12288, C=64.
func TestReleasedSize(t *testing.T) {
	d, err := Family().Releases[0].Config.Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	const e, f, c = 4096, 12288, 64
	block := int64(4*e*e + 3*e*f + 2*128)
	whole := 32*block + 2*c*e + e + 2*e*e + 256*e + e*e + 4*e*e + e*e
	if s := d.Spec; s.Params != whole || s.Blocks[3].Params != block || s.HeadDim != 128 || s.JointText() {
		t.Errorf("got %d parameters, %d in a block, heads of %d; want %d, %d, 128", s.Params, s.Blocks[3].Params,
			s.HeadDim, whole, block)
	}
}

// shapes returns the tensors of a config by name, with shapes but without data.
func shapes(t *testing.T, c Config) map[string]weights.Stored {
	t.Helper()
	d, err := c.Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	declared, err := d.Declare()
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]weights.Stored{}
	for _, d := range declared {
		m[d.Name] = weights.Stored{Shape: d.Shape}
	}
	return m
}

func TestDetectFindsTheConfig(t *testing.T) {
	want := Family().Releases[0].Config.(Config)
	want.Depth = 2
	if got, err := Detect(weights.FromMap(shapes(t, want)), nil); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestDetectRefusesWithReasons(t *testing.T) {
	for name, c := range map[string]struct {
		shape []int
		want  string
	}{
		"proj_out.weight": {[]int{32, 4096}, "proj_out writes 32"},
		"transformer_blocks.0.img_mlp.gate_up.weight": {[]int{33, 4096}, "gate_up has 33 rows"},
		"transformer_blocks.0.attn.norm_q.weight":     {[]int{64}, "axes_dims_rope"},
	} {
		config := Family().Releases[0].Config.(Config)
		config.Depth = 1
		set := shapes(t, config)
		set[name] = weights.Stored{Shape: c.shape}
		if _, err := Detect(weights.FromMap(set), nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want one that says %q", name, err, c.want)
		}
	}
}

// TestDiffusersFilesAreRead checks that a file with the gate and the other half of gate_up apart is read as one with
// both in a matrix, bare and inside a full checkpoint.
func TestDiffusersFilesAreRead(t *testing.T) {
	const mlp = "transformer_blocks.0.img_mlp."
	c := Family().Tiny.(Config)
	c.Depth = 1
	whole := shapes(t, c)
	for name, s := range whole {
		data := make([]float32, s.Len())
		for i := range data {
			data[i] = float32(i)
		}
		whole[name] = weights.Floats(data, s.Shape...)
	}
	apart := map[string]weights.Stored{}
	for name, s := range whole {
		apart[name] = s
	}
	gate, _ := whole[mlp+"gate_up.weight"].Rows(0, c.MLPHidden)
	up, _ := whole[mlp+"gate_up.weight"].Rows(c.MLPHidden, c.MLPHidden)
	delete(apart, mlp+"gate_up.weight")
	apart[mlp+"gate_layer.weight"], apart[mlp+"proj.weight"] = gate, up
	for _, prefix := range []string{"", "model.diffusion_model."} {
		set := map[string]weights.Stored{}
		for name, s := range apart {
			set[prefix+name] = s
		}
		got, err := family.Original([]family.Family{Family()}, weights.FromMap(set))
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range whole {
			s, ok := got.Get(name)
			if !ok || !reflect.DeepEqual(s.Shape, want.Shape) || !reflect.DeepEqual(s.F32(), want.F32()) {
				t.Errorf("prefix %q: %s is not that of the file with one matrix", prefix, name)
			}
		}
	}
}

// TestAdapterNames checks the rows and weights that names in files of adapters stand for.
func TestAdapterNames(t *testing.T) {
	c, one := Family().Tiny.(Config), loratest.One
	up := "transformer_blocks.1.img_mlp.gate_up"
	loratest.Check(t, Family(),
		one("diffusion_model.transformer_blocks.1.attn.to_k", c.Hidden, c.Hidden, "transformer_blocks.1.attn.to_k", 0),
		one("transformer.transformer_blocks.3.attn.to_out.0", c.Hidden, c.Hidden, "transformer_blocks.3.attn.to_out.0", 0),
		one("diffusion_model."+up, 2*c.MLPHidden, c.Hidden, up, 0),
		one("transformer.transformer_blocks.1.img_mlp.gate_layer", c.MLPHidden, c.Hidden, up, 0),
		one("transformer_blocks.1.img_mlp.proj", c.MLPHidden, c.Hidden, up, c.MLPHidden),
		one("diffusion_model.transformer_blocks.1.img_mlp.proj", c.MLPHidden, c.Hidden, up, c.MLPHidden),
		one("lycoris_transformer_blocks_2_img_mlp_out", c.Hidden, c.MLPHidden, "transformer_blocks.2.img_mlp.out", 0),
		one("diffusion_model.modulation.1", 4*c.Hidden, c.Hidden, "modulation.1", 0),
		one("txt_in.in_layer", c.Hidden, c.ContextDim, "txt_in.in_layer", 0),
	)
}
