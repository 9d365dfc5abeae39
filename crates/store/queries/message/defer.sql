-- leasehold_store::Store::defer
SELECT defer($1, $2, $3)
