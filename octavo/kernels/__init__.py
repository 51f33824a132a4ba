"""Operations of the tensor world, behind one typed table."""
