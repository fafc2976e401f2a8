package ltx

import (
	"patchbay/engine"
	"patchbay/models/family"
)

// net names the weights of the whole model. Sizes in the tags: E width of the video, A of the sound, C and S columns of
// their tokens, T of the text, R learned rows. Structs with sizes have some of their own.
type net struct {
	Patch      *engine.Weight  `weight:"patchify_proj" shape:"E,C" use:"embed"`
	SoundPatch *engine.Weight  `weight:"audio_patchify_proj" shape:"A,S" use:"embed"`
	Keyframe   *marker         `weight:"" use:"embed"` // nil: none
	After      *captions       `weight:""`             // how texts are projected: one of these, or neither
	Before     *caption        `weight:""`
	Connector  connector       `weight:"video_embeddings_connector"`
	SoundConn  soundConnector  `weight:"audio_embeddings_connector"`
	Time       stepper         `weight:"adaln_single"`
	SoundTime  stepper         `weight:"audio_adaln_single"`
	Cross      stepper         `weight:"av_ca_video_scale_shift_adaln_single"`
	SoundCross stepper         `weight:"av_ca_audio_scale_shift_adaln_single"`
	Gate       stepper         `weight:"av_ca_a2v_gate_adaln_single"` // of what the video takes from the sound
	SoundGate  stepper         `weight:"av_ca_v2a_gate_adaln_single"`
	Prompt     *promptSteppers `weight:""` // nil: the attention to the text is not modulated
	Blocks     []block         `weight:"transformer_blocks"`
	Head       engine.Tensor   `weight:"scale_shift_table" shape:"2,E" use:"head"` // shift, scale
	Out        *engine.Weight  `weight:"proj_out" shape:"C,E" use:"head"`
	SoundHead  engine.Tensor   `weight:"audio_scale_shift_table" shape:"2,A" use:"head"`
	SoundOut   *engine.Weight  `weight:"audio_proj_out" shape:"S,A" use:"head"`
}

// sizes are the sizes of one struct, by the names that its tags use.
type sizes map[string]int

// Sizes implements weights.Sized.
func (s sizes) Sizes() map[string]int { return s }

type marker struct {
	Row engine.Tensor `weight:"keyframes_abs_pos_embedding" shape:"1,E"`
}

// captions project a text behind the connectors.
type captions struct {
	Video mlp2 `weight:"caption_projection"`
	Sound mlp2 `weight:"audio_caption_projection"`
}

type mlp2 struct {
	sizes
	In  *engine.Weight `weight:"linear_1" shape:"w,T"`
	Out *engine.Weight `weight:"linear_2" shape:"w,w"`
}

// caption projects a text in front of the connectors.
type caption struct {
	Video *engine.Weight `weight:"caption_projection.linear_1" shape:"E,T"`
	Sound *engine.Weight `weight:"audio_caption_projection.linear_1" shape:"A,T"`
}

// stepper makes k chunks of a modulation of the timestep.
type stepper struct {
	sizes
	In     *engine.Weight `weight:"emb.timestep_embedder.linear_1" shape:"w,256"`
	Out    *engine.Weight `weight:"emb.timestep_embedder.linear_2" shape:"w,w"`
	Chunks *engine.Weight `weight:"linear" shape:"k*w,w"`
}

type promptSteppers struct {
	Video stepper `weight:"prompt_adaln_single"`
	Sound stepper `weight:"audio_prompt_adaln_single"`
}

// block is one block. A table of a stream has shift, scale and gate of its attention to itself, then of its MLP, then,
// if it is modulated, of its attention to the text. A table of the attention between the streams has scale and shift of
// the video's attention, then of the sound's, then a gate; one of texts has shift and scale.
type block struct {
	Table      engine.Tensor  `weight:"scale_shift_table" shape:"m,E"`
	SoundTable engine.Tensor  `weight:"audio_scale_shift_table" shape:"m,A"`
	Cross      engine.Tensor  `weight:"scale_shift_table_a2v_ca_video" shape:"5,E"`
	SoundCross engine.Tensor  `weight:"scale_shift_table_a2v_ca_audio" shape:"5,A"`
	Prompt     *promptTables  `weight:""`
	Self       videoAttention `weight:"attn1"`
	SoundSelf  soundAttention `weight:"audio_attn1"`
	Text       attention      `weight:"attn2"`
	SoundText  attention      `weight:"audio_attn2"`
	FromSound  soundAttention `weight:"audio_to_video_attn"`
	FromVideo  soundAttention `weight:"video_to_audio_attn"`
	MLP        mlp            `weight:"ff.net"`
	SoundMLP   mlp            `weight:"audio_ff.net"`
}

type promptTables struct {
	Video engine.Tensor `weight:"prompt_scale_shift_table" shape:"2,E"`
	Sound engine.Tensor `weight:"audio_prompt_scale_shift_table" shape:"2,A"`
}

type mlp struct {
	sizes
	Up   *engine.Weight `weight:"0.proj,optbias" shape:"4w,w"`
	Down *engine.Weight `weight:"2,optbias" shape:"w,4w"`
}

// attention is an attention of rows of w columns to rows of c columns with h heads, i columns together. Where heads are
// rotated, loading brings the two elements of each pair side by side: those types differ in the order alone.
type attention struct {
	sizes
	Q     *engine.Weight `weight:"to_q" shape:"i,w"`
	K     *engine.Weight `weight:"to_k" shape:"i,c"`
	V     *engine.Weight `weight:"to_v" shape:"i,c"`
	Query engine.Tensor  `weight:"q_norm.weight" shape:"i"`
	Key   engine.Tensor  `weight:"k_norm.weight" shape:"i"`
	Gate  *gate          `weight:""` // nil: none
	Out   *engine.Weight `weight:"to_out.0" shape:"w,i"`
}

type gate struct {
	Logits *engine.Weight `weight:"to_gate_logits" shape:"h,w"`
}

type videoAttention struct {
	sizes
	Q     *engine.Weight `weight:"to_q,perm=video" shape:"i,w"`
	K     *engine.Weight `weight:"to_k,perm=video" shape:"i,c"`
	V     *engine.Weight `weight:"to_v" shape:"i,c"`
	Query engine.Tensor  `weight:"q_norm.weight,perm=video" shape:"i"`
	Key   engine.Tensor  `weight:"k_norm.weight,perm=video" shape:"i"`
	Gate  *gate          `weight:""`
	Out   *engine.Weight `weight:"to_out.0" shape:"w,i"`
}

type soundAttention struct {
	sizes
	Q     *engine.Weight `weight:"to_q,perm=sound" shape:"i,w"`
	K     *engine.Weight `weight:"to_k,perm=sound" shape:"i,c"`
	V     *engine.Weight `weight:"to_v" shape:"i,c"`
	Query engine.Tensor  `weight:"q_norm.weight,perm=sound" shape:"i"`
	Key   engine.Tensor  `weight:"k_norm.weight,perm=sound" shape:"i"`
	Gate  *gate          `weight:""`
	Out   *engine.Weight `weight:"to_out.0" shape:"w,i"`
}

// connector is the transformer that a text goes through first. The type for the sound differs in the order of pairs.
type connector struct {
	sizes
	Registers engine.Tensor    `weight:"learnable_registers" shape:"R,w"`
	Blocks    []connectorBlock `weight:"transformer_1d_blocks"`
}

type connectorBlock struct {
	Self connectorAttention `weight:"attn1"`
	MLP  mlp                `weight:"ff.net"`
}

type connectorAttention struct {
	sizes
	Q     *engine.Weight `weight:"to_q,perm=connector" shape:"i,w"`
	K     *engine.Weight `weight:"to_k,perm=connector" shape:"i,c"`
	V     *engine.Weight `weight:"to_v" shape:"i,c"`
	Query engine.Tensor  `weight:"q_norm.weight,perm=connector" shape:"i"`
	Key   engine.Tensor  `weight:"k_norm.weight,perm=connector" shape:"i"`
	Gate  *gate          `weight:""`
	Out   *engine.Weight `weight:"to_out.0" shape:"w,i"`
}

type soundConnector struct {
	sizes
	Registers engine.Tensor         `weight:"learnable_registers" shape:"R,w"`
	Blocks    []soundConnectorBlock `weight:"transformer_1d_blocks"`
}

type soundConnectorBlock struct {
	Self soundConnectorAttention `weight:"attn1"`
	MLP  mlp                     `weight:"ff.net"`
}

type soundConnectorAttention struct {
	sizes
	Q     *engine.Weight `weight:"to_q,perm=sound connector" shape:"i,w"`
	K     *engine.Weight `weight:"to_k,perm=sound connector" shape:"i,c"`
	V     *engine.Weight `weight:"to_v" shape:"i,c"`
	Query engine.Tensor  `weight:"q_norm.weight,perm=sound connector" shape:"i"`
	Key   engine.Tensor  `weight:"k_norm.weight,perm=sound connector" shape:"i"`
	Gate  *gate          `weight:""`
	Out   *engine.Weight `weight:"to_out.0" shape:"w,i"`
}

// net returns the empty struct of the weights.
func (c Config) net() *net {
	v, a, n := c.Hidden, c.Sound, c.Connectors
	step := func(w, k int) stepper { return stepper{sizes: sizes{"w": w, "k": k}} }
	of := func(query, keys, inner, heads int, gated bool) attention {
		return attention{
			sizes: sizes{"w": query, "c": keys, "i": inner, "h": heads}, Gate: family.NewIf[gate](gated),
		}
	}
	out := &net{
		Keyframe: family.NewIf[marker](c.Keyframes), Time: step(v, c.chunks()), SoundTime: step(a, c.chunks()),
		Cross: step(v, 4), SoundCross: step(a, 4), Gate: step(v, 1), SoundGate: step(a, 1),
		Blocks: make([]block, c.Depth),
	}
	switch n.Project {
	case After:
		out.After = &captions{Video: mlp2{sizes: sizes{"w": v}}, Sound: mlp2{sizes: sizes{"w": a}}}
	case Before:
		out.Before = new(caption)
	}
	out.Connector = connector{sizes: sizes{"w": n.Width}, Blocks: make([]connectorBlock, n.Depth)}
	out.SoundConn = soundConnector{sizes: sizes{"w": n.SoundWidth}, Blocks: make([]soundConnectorBlock, n.Depth)}
	for i := range n.Depth {
		out.Connector.Blocks[i] = connectorBlock{
			connectorAttention(of(n.Width, n.Width, n.Width, n.Width/n.HeadDim, n.Gated)), mlp{sizes: sizes{"w": n.Width}},
		}
		out.SoundConn.Blocks[i] = soundConnectorBlock{
			soundConnectorAttention(of(n.SoundWidth, n.SoundWidth, n.SoundWidth, n.SoundWidth/n.SoundHeadDim, n.Gated)),
			mlp{sizes: sizes{"w": n.SoundWidth}},
		}
	}
	if c.TextModulation {
		out.Prompt = &promptSteppers{Video: step(v, 2), Sound: step(a, 2)}
	}
	for i := range out.Blocks {
		out.Blocks[i] = block{
			Prompt: family.NewIf[promptTables](c.TextModulation), MLP: mlp{sizes: sizes{"w": v}},
			SoundMLP: mlp{sizes: sizes{"w": a}}, Self: videoAttention(of(v, v, v, c.Heads, c.Gated)),
			SoundSelf: soundAttention(of(a, a, a, c.SoundHeads, c.Gated)), Text: of(v, v, v, c.Heads, c.Gated),
			SoundText: of(a, a, a, c.SoundHeads, c.Gated), FromSound: soundAttention(of(v, a, a, c.SoundHeads, c.Gated)),
			FromVideo: soundAttention(of(a, v, a, c.SoundHeads, c.Gated)),
		}
	}
	return out
}

// chunks returns the number of rows in the table of a stream.
func (c Config) chunks() int {
	if c.TextModulation {
		return 9
	}
	return 6
}
