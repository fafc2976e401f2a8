// Package value holds what travels along the links of a workflow: latents, conditionings, sigmas, and the handles
// MODEL, CLIP and VAE with the files and weights behind them. It lowers them to requests of parallel and gives them the
// form in which they travel to hosts. It knows no workflow, no node class and no cache of results.
package value
