# SPDX-License-Identifier: Apache-2.0
# The names of the tests that libtest says failed: awk -f failed-tests.awk LOG
#
# libtest ends the output of a program with two parts headed "failures:": what the tests printed, and then their names.

/^failures:$/ {
    delete name
    names = 0
}
/^    [^ ]+$/ { name[++names] = $1 }
/^test result: / {
    if (/^test result: FAILED/) for (i = 1; i <= names; i++) print name[i]
    names = 0
}
