//go:build cgo
package cuda
import "patchbay/engine"
func (o *Ops) Linear(y, x engine.Tensor, w *engine.Weight, e engine.Epilogue) {engine.CheckLinear(y,x,w,e); panic("todo")}
func (o *Ops) Attention(a, q, k, v engine.Tensor, x engine.AttentionArgs) {engine.CheckAttention(a,q,k,v,x);panic("todo")}
func (o *Ops) MergeAttention(a, lse, o2, lse2 engine.Tensor) {engine.CheckMergeAttention(a,lse,o2,lse2);panic("todo")}
func (o *Ops) Conv2D(y, x engine.Tensor, w *engine.Weight, a engine.ConvArgs) {engine.CheckConv2D(y,x,w,a); panic("todo")}
