package compiled

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"
)

// TestCodeOfEveryGPU checks which code a GPU gets: that of its major version and of the largest minor one that it has
// or had before it, for GPUs that were sold and some that were not.
func TestCodeOfEveryGPU(t *testing.T) {
	for _, c := range []struct {
		major, minor int
		want         string
	}{
		{7, 5, ""},
		{8, 0, "sm_80"},
		{8, 6, "sm_86"},
		{8, 7, "sm_86"},
		{8, 8, "sm_86"},
		{8, 9, "sm_89"},
		{8, 10, "sm_89"},
		{9, 0, "sm_90"},
		{10, 0, "sm_100"},
		{10, 3, "sm_100"},
		{11, 0, ""},
		{12, 0, "sm_120"},
		{12, 1, "sm_120"},
		{13, 0, ""},
		{1, 0, ""},
	} {
		arch, all, err := Code(c.major, c.minor)
		if err != nil || arch != c.want || (len(all) > 0) != (c.want != "") {
			t.Errorf("%d.%d: %q, %d modules, %v; want %q", c.major, c.minor, arch, len(all), err, c.want)
		}
	}
}

// TestCodeIsThatOfThePTX checks that every source has code for every architecture, of the architecture that its name
// says, with the kernels of its PTX.
func TestCodeIsThatOfThePTX(t *testing.T) {
	ptx, err := PTX()
	if err != nil || len(ptx) == 0 {
		t.Fatal(len(ptx), err)
	}
	for _, arch := range []int{80, 86, 89, 90, 100, 120} {
		_, all, err := Code(arch/10, arch%10)
		if err != nil || len(all) != len(ptx) {
			t.Fatalf("sm_%d: code of %d sources, PTX of %d; %v", arch, len(all), len(ptx), err)
		}
		for i, m := range all {
			const abiAt, machineAt, flagsAt, nvidia = 8, 18, 48, 190 // in the head of an ELF file
			machine := binary.LittleEndian.Uint16(m.Image[machineAt:])
			made := int(binary.LittleEndian.Uint32(m.Image[flagsAt:]))
			if m.Image[abiAt] >= 8 { // ptxas 12.8 and newer
				made >>= 8
			}
			if made &= 255; string(m.Image[1:4]) != "ELF" || machine != nvidia || made != arch {
				t.Errorf("%s.sm_%d is for machine %d, architecture %d", m.Name, arch, machine, made)
			}
			got, want := slices.Clone(m.Kernels), slices.Clone(ptx[i].Kernels)
			slices.Sort(got)
			slices.Sort(want)
			if got = slices.Compact(got); m.Name != ptx[i].Name || len(want) == 0 || !slices.Equal(got, want) {
				t.Errorf("%s.sm_%d has kernels %q, the PTX of %s has %q", m.Name, arch, got, ptx[i].Name, want)
			}
		}
	}
}

// TestDamagedArchive checks that an archive that lost its end or has a wrong byte is an error that says so.
func TestDamagedArchive(t *testing.T) {
	wrong := bytes.Clone(archive)
	wrong[len(wrong)/2] ^= 1
	damaged := [][]byte{nil, wrong}
	for _, n := range []int{1, 9, len(archive) / 2, len(archive) - 9, len(archive) - 1} {
		damaged = append(damaged, archive[:n])
	}
	for _, a := range damaged {
		u := open(a)
		var err error
		for _, form := range []string{".ptx", ".sm_80", ".sm_86", ".sm_89", ".sm_90", ".sm_100", ".sm_120"} {
			if _, e := u.modules(form); e != nil {
				err = e
			}
		}
		if err == nil || !strings.Contains(err.Error(), "kernels.zip) are damaged") {
			t.Errorf("%d of %d bytes: %v", len(a), len(archive), err)
		}
	}
}

// BenchmarkUnpack measures how long the code for one GPU, and the PTX, take to unpack.
func BenchmarkUnpack(b *testing.B) {
	for _, form := range []string{".sm_90", ".ptx"} {
		b.Run(form[1:], func(b *testing.B) {
			for b.Loop() {
				if all, err := open(archive).modules(form); err != nil || len(all) == 0 {
					b.Fatal(len(all), err)
				}
			}
		})
	}
}
