package cuda

import "patchbay/engine/cuda/driver"

// Info describes a device.
type Info = driver.Info

// ErrNotOpened is wrapped by errors that say that the driver library is missing or too old.
var ErrNotOpened = driver.ErrNotOpened
