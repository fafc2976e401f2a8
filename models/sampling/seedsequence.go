package sampling

// The constants of numpy's SeedSequence, after O'Neill's seed_seq_fe (2015).
const (
	seedInitA  = 0x43b0d7e5
	seedMultA  = 0x931e8875
	seedInitB  = 0x8b51f9dd
	seedMultB  = 0x58f38ded
	seedMixL   = 0xca01f9dd
	seedMixR   = 0x4973f715
	seedXShift = 16
)

// seedWords splits v into 32-bit words, low first, at least one.
func seedWords(v uint64) []uint32 {
	if v>>32 == 0 {
		return []uint32{uint32(v)}
	}
	return []uint32{uint32(v), uint32(v >> 32)}
}

// spawnedSeeds returns n words of numpy.random.SeedSequence(entropy, spawn_key=key, pool_size=pool).
// generate_state(n).
func spawnedSeeds(entropy uint64, key []uint64, pool, n int) []uint32 {
	words := seedWords(entropy)
	if len(key) > 0 {
		for len(words) < pool {
			words = append(words, 0)
		}
		for _, k := range key {
			words = append(words, seedWords(k)...)
		}
	}
	state := mixSeeds(words, pool)
	out := make([]uint32, n)
	hash := uint32(seedInitB)
	for i := range out {
		v := state[i%pool] ^ hash
		hash *= seedMultB
		v *= hash
		out[i] = v ^ v>>seedXShift
	}
	return out
}

// mixSeeds spreads words over a pool so that every word touches every place.
func mixSeeds(words []uint32, pool int) []uint32 {
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
	state := make([]uint32, pool)
	for i := range state {
		w := uint32(0)
		if i < len(words) {
			w = words[i]
		}
		state[i] = hashed(w)
	}
	for from := range state {
		for to := range state {
			if from != to {
				state[to] = mix(state[to], hashed(state[from]))
			}
		}
	}
	for _, w := range words[min(pool, len(words)):] {
		for to := range state {
			state[to] = mix(state[to], hashed(w))
		}
	}
	return state
}
