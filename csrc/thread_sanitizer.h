// Included before all else where threads are checked (GLT_SANITIZE=thread): GCC's sanitizer (12) does not see the call
// by which std::timed_mutex waits from glibc 2.30 on, and takes what the lock guards for unguarded.
#pragma once

#include <bits/c++config.h>
#undef _GLIBCXX_USE_PTHREAD_MUTEX_CLOCKLOCK
