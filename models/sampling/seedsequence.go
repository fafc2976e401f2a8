package sampling

import "math"

// The constants of numpy's SeedSequence, after O'Neill's seed_seq_fe (2015).
const (
	seedInitA  = 0x43b0d7e5
	seedMultA  = 0x931e8875
	seedInitB  = 0x8b51f9dd
	seedMultB  = 0x58f38ded
	seedMixL   = 0xca01f9dd
	seedMixR   = 0x4973f715
	seedXShift = 16

	brownianPool = 24 // pool size of torchsde's seed sequences
)

// seedWords splits v into 32-bit words, low first, without a high word of 0.
func seedWords(v uint64) []uint32 {
	if v>>32 == 0 {
		return []uint32{uint32(v)}
	}
	return []uint32{uint32(v), uint32(v >> 32)}
}

// spawnedSeed returns numpy.random.SeedSequence(entropy, spawn_key=key, pool_size=brownianPool).generate_state(1)[0].
func spawnedSeed(entropy uint64, key ...uint64) uint64 {
	words := seedWords(entropy)
	if len(key) > 0 {
		words = append(words, make([]uint32, brownianPool-len(words))...)
		for _, k := range key {
			words = append(words, seedWords(k)...)
		}
	}
	v := (mixSeeds(words) ^ seedInitB) * uint32(seedInitB*seedMultB&math.MaxUint32)
	return uint64(v ^ v>>seedXShift)
}

// mixSeeds mixes words into the pool so that every word affects every place, and returns the first place.
func mixSeeds(words []uint32) uint32 {
	hash := uint32(seedInitA)
	hashed := func(v uint32) uint32 {
		v ^= hash
		hash *= seedMultA
		v *= hash
		return v ^ v>>seedXShift
	}
	mix := func(a, b uint32) uint32 {
		v := seedMixL*a - seedMixR*b
		return v ^ v>>seedXShift
	}
	var state [brownianPool]uint32
	copy(state[:], words)
	for i, w := range state {
		state[i] = hashed(w)
	}
	for from := range state {
		for to := range state {
			if from != to {
				state[to] = mix(state[to], hashed(state[from]))
			}
		}
	}
	for _, w := range words[min(len(state), len(words)):] {
		for to := range state {
			state[to] = mix(state[to], hashed(w))
		}
	}
	return state[0]
}
