package minimaxh3

import (
	"patchbay/engine"
	"patchbay/models/layers"
)

// net names the weights of the whole model. Sizes in the tags: E width, K all heads together, D head dim, F MLP width,
// C channels of the video, S of the sound, p patch size, T columns of the context, M of the embedded time, W inside its
// embedder, G rows of the table, N frequencies.
type net struct {
	VideoIn     *engine.Weight `weight:"video_patch_proj" shape:"E,C*p*p" use:"embed"`
	SoundIn     *engine.Weight `weight:"audio_patch_proj" shape:"E,S" use:"embed"`
	TextIn      *engine.Weight `weight:"condition_proj" shape:"E,T" use:"embed"`
	Refiner     refiner        `weight:"token_refiner" use:"embed"`
	Time        *embedder      `weight:"time_embedder"` // nil: a table
	Table       *table         `weight:""`              // nil: an embedder
	Frequencies engine.Tensor  `weight:"rope.inv_freq" shape:"N"`
	Blocks      []block        `weight:"blocks"`
	Final       final          `weight:"final_layer" use:"head"`
}

type embedder struct {
	In  *engine.Weight `weight:"proj_in" shape:"W,256"`
	Out *engine.Weight `weight:"proj_out" shape:"M,W"`
}

// table has the embeddings of times from 0 to 1, equally far apart, with the activation that follows them.
type table struct {
	Rows engine.Tensor `weight:"adaln_t_table" shape:"G,M"`
}

// refiner is the blocks of the text. Every rank of a tensor group holds them whole: a prompt goes through them once.
type refiner struct {
	Blocks []textBlock   `weight:"blocks"`
	Norm   engine.Tensor `weight:"final_norm.weight" shape:"E"`
}

type textBlock struct {
	Norm1 engine.Tensor  `weight:"norm1.weight" shape:"E"`
	QKV   *engine.Weight `weight:"attn.qkv_proj,nobias" shape:"3K,E"`
	Query engine.Tensor  `weight:"attn.q_norm.weight" shape:"D"`
	Key   engine.Tensor  `weight:"attn.k_norm.weight" shape:"D"`
	Out   *engine.Weight `weight:"attn.out_proj,nobias" shape:"E,K"`
	Norm2 engine.Tensor  `weight:"norm2.weight" shape:"E"`
	Gate  *engine.Weight `weight:"mlp.fc1,nobias" shape:"2F,E" rows:"0:F"`
	Up    *engine.Weight `weight:"mlp.fc1,nobias" shape:"2F,E" rows:"F:2F"`
	Down  *engine.Weight `weight:"mlp.fc2,nobias" shape:"E,F"`
}

// block is one block of all rows. Queries and keys are stored for a rotation in halves.
type block struct {
	Norm1 engine.Tensor  `weight:"norm1.weight" shape:"E"`
	QKV   *engine.Weight `weight:"attn.qkv_proj,nobias,perm=qkv" shape:"3K,E" split:"rows 3K"`
	Query engine.Tensor  `weight:"attn.q_norm.weight,perm=head" shape:"D"`
	Key   engine.Tensor  `weight:"attn.k_norm.weight,perm=head" shape:"D"`
	Out   *engine.Weight `weight:"attn.out_proj,nobias" shape:"E,K" split:"cols K"`
	Norm2 engine.Tensor  `weight:"norm2.weight" shape:"E"`
	Gate  *engine.Weight `weight:"mlp.fc1,nobias" shape:"2F,E" rows:"0:F" split:"rows F"`
	Up    *engine.Weight `weight:"mlp.fc1,nobias" shape:"2F,E" rows:"F:2F" split:"rows F"`
	Down  *engine.Weight `weight:"mlp.fc2,nobias" shape:"E,F" split:"cols F"`
	Mod   modulation     `weight:"adaln_proj"`
}

// modulation makes shift, scale, gate of the attention, then of the MLP, for each modality.
type modulation struct {
	Video *engine.Weight `weight:"linear" shape:"18E,M" rows:"0:6E"`
	Text  *engine.Weight `weight:"linear" shape:"18E,M" rows:"6E:12E"`
	Sound *engine.Weight `weight:"linear" shape:"18E,M" rows:"12E:18E"`
}

// final is the last layer. Mod gives shift, scale.
type final struct {
	Norm  engine.Tensor  `weight:"norm.weight" shape:"E"`
	Mod   *engine.Weight `weight:"adaln_proj.linear" shape:"2E,M"`
	Video *engine.Weight `weight:"video_out" shape:"C*p*p,E"`
	Sound *engine.Weight `weight:"audio_out" shape:"S,E"`
}

// side returns the weights of a block as package layers takes them.
func (w *block) side() *layers.Side {
	return &layers.Side{
		QKV: []*engine.Weight{w.QKV}, Norm: layers.RMS(w.Query, w.Key, eps), Out: w.Out, Gate: w.Gate, Up: w.Up, Down: w.Down,
	}
}

func (w *textBlock) side() *layers.Side {
	return &layers.Side{
		QKV: []*engine.Weight{w.QKV}, Norm: layers.RMS(w.Query, w.Key, eps), Out: w.Out, Gate: w.Gate, Up: w.Up, Down: w.Down,
	}
}

// halves returns the order of rows of heads of width d that brings those together which turn together: k and k + n, for
// k < n = d minus what does not turn, halved. The others follow.
func halves(d, turning int) []int {
	out, n := make([]int, 0, d), turning/2
	for k := range n {
		out = append(out, k, k+n)
	}
	for k := turning; k < d; k++ {
		out = append(out, k)
	}
	return out
}

// fused returns the order of rows of queries, keys and values of so many heads, of which the values stay.
func fused(head []int, heads int) (out []int) {
	d := len(head)
	for h := range 3 * heads {
		for k := range d {
			if h < 2*heads {
				k = head[k]
			}
			out = append(out, h*d+k)
		}
	}
	return out
}
