//go:build cgo
package cuda
import "patchbay/engine"
func (o *Ops) Attention(a, q, k, v engine.Tensor, x engine.AttentionArgs) {engine.CheckAttention(a,q,k,v,x);panic("todo")}
func (o *Ops) MergeAttention(a, lse, o2, lse2 engine.Tensor) {engine.CheckMergeAttention(a,lse,o2,lse2);panic("todo")}
