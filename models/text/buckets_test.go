package text

import "testing"

// TestBuckets compares with the table that the formula gives for 32 buckets up to distance 128: exact below 8, then
// steps of a factor 2^(1/2) (8, 12, 16, 23, 32, 46, 64, 91).
func TestBuckets(t *testing.T) {
	limits := []int{8, 12, 16, 23, 32, 46, 64, 91} // first distance of buckets 8..15
	const l = 200
	got := buckets(l, 32, 128)
	for q := range l {
		for k := range l {
			d, want := k-q, 0
			if d > 0 {
				want = 16
			} else {
				d = -d
			}
			bucket := min(d, 7)
			for i, from := range limits {
				if d >= from {
					bucket = 8 + i
				}
			}
			if want += bucket; int(got[q*l+k]) != want {
				t.Fatalf("query %d, key %d: bucket %d, want %d", q, k, got[q*l+k], want)
			}
		}
	}
}
