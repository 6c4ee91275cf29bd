// Precompiled and included before every file (see Makefile); each file still includes its own
// headers.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>
