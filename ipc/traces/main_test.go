package traces

import (
	"testing"

	"patchbay/ipc/ipctest"
)

func TestMain(m *testing.M) { ipctest.Main(m) }
