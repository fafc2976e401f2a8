//go:build !linux

package goldenrun

func smallPages([]byte) {}
