// Package value defines the values that travel along the links of a workflow: latents, conditionings, sigmas, and the
// handles MODEL, CLIP and VAE with the files and weights behind them. It lowers them to requests of package parallel
// and converts them to and from their wire form for hosts. It knows nothing of workflows, node classes or result
// caches.
package value
