// oneDNN's kernels in place of libtorch's choice (onednn.cpp).
#pragma once

namespace gpipe {

// Whether they are on for this thread.
bool onednn_is_on();

}  // namespace gpipe
