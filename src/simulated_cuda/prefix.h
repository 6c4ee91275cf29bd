// Included before every file, compiled (see Makefile): what a file needs, it includes by itself.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>
