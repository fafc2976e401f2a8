package lora

import "strings"

// role is the role of a file's tensor in its module.
type role uint8

const (
	roleNone role = iota
	roleUp
	roleDown
	roleAlpha
	roleBias // added to the module's bias
	roles
)

// endings lists how formats spell the two tensors of a pair.
func endings() []struct{ up, down string } {
	return []struct{ up, down string }{
		{".lora_linear_layer.up.weight", ".lora_linear_layer.down.weight"}, // transformers
		{".lora_B.default.weight", ".lora_A.default.weight"},               // PEFT with the adapter's name
		{".lora_up.weight", ".lora_down.weight"},                           // kohya
		{".lora_B.weight", ".lora_A.weight"},                               // PEFT, diffusers
		{".lora.up.weight", ".lora.down.weight"},                           // older diffusers
		{"_lora.up.weight", "_lora.down.weight"},                           // attention processors
		{".lora_B", ".lora_A"},
	}
}

// split splits a tensor name into module and role. XLabs' names for double blocks, "processor.qkv_lora1.up.weight",
// have none of the usual endings.
func split(name string) (stem string, r role) {
	if stem, ok := strings.CutSuffix(name, ".alpha"); ok {
		return stem, roleAlpha
	}
	for _, end := range []string{".lora_B.bias", ".diff_b"} { // BFL, LyCORIS
		if stem, ok := strings.CutSuffix(name, end); ok {
			return stem, roleBias
		}
	}
	for _, e := range endings() {
		if stem, ok := strings.CutSuffix(name, e.up); ok {
			return stem, roleUp
		}
		if stem, ok := strings.CutSuffix(name, e.down); ok {
			return stem, roleDown
		}
	}
	if strings.Contains(name, ".processor.") {
		if stem, ok := strings.CutSuffix(name, ".up.weight"); ok {
			return stem, roleUp
		}
		if stem, ok := strings.CutSuffix(name, ".down.weight"); ok {
			return stem, roleDown
		}
	}
	return "", roleNone
}

// unsupported returns the kind of patch that a tensor belongs to if that is not supported, else "".
func unsupported(name string) string {
	for _, k := range []struct{ part, what string }{
		{".dora_scale", "DoRA"},
		{".lora_magnitude_vector", "DoRA"},
		{".hada_", "LoHa"},
		{".lokr_", "LoKr"},
		{".oft_", "OFT"},
		{".lora_mid", "a pair with a middle matrix"},
	} {
		if strings.Contains(name, k.part) {
			return k.what
		}
	}
	for _, k := range []struct{ end, what string }{
		{".diff", "a full difference"},
		{".lora_up.bias", "a change of a bias"},
		{".reshape_weight", "a weight that is widened"},
		{".w_norm", "a change of a norm"},
		{".b_norm", "a change of a norm"},
		{".a1.weight", "GLoRA"},
		{".a2.weight", "GLoRA"},
		{".b1.weight", "GLoRA"},
		{".b2.weight", "GLoRA"},
	} {
		if strings.HasSuffix(name, k.end) {
			return k.what
		}
	}
	return ""
}
