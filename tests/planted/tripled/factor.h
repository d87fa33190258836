// A header of the kernel's own.
#pragma once

constexpr float kFactor = 3.0f;
