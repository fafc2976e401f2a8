// Package resample resizes pictures, latents and masks with the numbers that ComfyUI gets from torch and Pillow.
//
// Upscale is the whole of ComfyUI's common_upscale (comfy/utils.py, 0.8.0): an optional crop to the new aspect ratio,
// then one of six methods. nearest-exact, bilinear, bicubic and area are torch.nn.functional.interpolate with a size,
// align_corners false, no antialiasing; lanczos goes through 8-bit pictures and Pillow's fixed-point filter; bislerp
// rotates the channel vector of a latent from pixel to pixel.
//
// torch has two CPU implementations that round source positions differently. Where this shows (a nearest pixel at a
// boundary), the choice between them is torch's, see kernel. All arithmetic is float32 in a fixed order, so results do
// not depend on the number of goroutines. image.go is the entry point, axis.go maps output to source positions, the
// other files hold one method each; mask.go grows and feathers masks.
package resample
